//! Reads and writes by io_uring, behind an interface that cannot be used wrongly: [`Ring`], [`Buffer`], [`probe`].
//!
//! It stands apart from the fill engine (`cache::engine`) because here is what must be argued with the kernel in
//! mind, and there what a fill means. The promises:
//!
//! - What the kernel may touch is owned by the ring: buffer and descriptor are moved into a slot when an operation is
//!   submitted and come back with its completion. No future or caller can free them early.
//! - A completion finds its slot by number **and** generation, so a late or doubled one finds nothing.
//! - An errno is an errno (the kernel's result, negated); a short transfer is reported as the short number it is.
//! - Waiting sleeps in the kernel; a signal does not disturb it.
//! - Dropping a ring cancels and waits for what is in flight. Should the kernel refuse even that, the memory is leaked
//!   and never freed under its pen.
//!
//! It does not resubmit, retry or order anything: that needs to know what the bytes are for.

use std::fmt;
use std::io;
use std::ops::{Deref, DerefMut, Range};
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Duration;

use io_uring::{IoUring, cqueue, opcode, squeue, types};

/// Page-aligned memory of fixed size that the kernel may read or fill.
///
/// It is zeroed once, by the kernel and page by page as it is touched: a buffer of 1 MiB that only ever carries small
/// files costs only their pages. Dropping it gives the pages back at once.
pub struct Buffer {
    start: NonNull<u8>,
    capacity: usize,
}

// SAFETY: the mapping behind `start` is private to this value and tied to no thread; moving the value moves the only
// handle to it.
unsafe impl Send for Buffer {}
// SAFETY: through `&Buffer` the memory can only be read; every writer (safe code or a `Ring`) needs it by value or by
// `&mut`.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// A zeroed buffer of `capacity` bytes, which must not be 0.
    ///
    /// # Errors
    /// What mmap(2) says: ENOMEM, or EINVAL for a capacity of 0.
    pub fn new(capacity: usize) -> io::Result<Self> {
        const PROTECTION: i32 = libc::PROT_READ | libc::PROT_WRITE;
        const FLAGS: i32 = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: no address is asked for (null, no MAP_FIXED), so the kernel picks one where nothing is mapped and no
        // existing memory changes; no descriptor is involved.
        let address = unsafe { libc::mmap(std::ptr::null_mut(), capacity, PROTECTION, FLAGS, -1, 0) };
        if address == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start = NonNull::new(address.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { start, capacity })
    }

    /// Size in bytes; never changes.
    pub fn capacity(&self) -> usize {
        self.capacity
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: `start` begins a mapping of `capacity` bytes that lives as long as `self`, page-aligned, zeroed and
        // so initialised. The kernel writes to it only while a `Ring` owns the buffer, and a ring never derefs it.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.capacity) }
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as for `deref`; and `&mut self` on the only handle means that no other slice of it is alive.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.capacity) }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: exactly the mapping that `new` made, unmapped once, by the last holder; borrows of it have ended,
        // and an operation in flight would own the buffer, so the kernel is not using it.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.capacity) };
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer({} bytes)", self.capacity)
    }
}

/// What an operation does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Direction {
    Read,
    Write,
}

/// An operation to submit: bytes `range` of a buffer, read from or written to a file at `offset`.
#[derive(Debug)]
pub struct Request {
    direction: Direction,
    fd: Arc<OwnedFd>,
    buffer: Buffer,
    range: Range<usize>,
    offset: u64,
    tag: u64,
}

impl Request {
    /// Fills `buffer[range]` from byte `offset` of `fd`. `tag` comes back with the completion.
    ///
    /// # Panics
    /// When `range` is not inside the buffer.
    pub fn read(fd: &Arc<OwnedFd>, buffer: Buffer, range: Range<usize>, offset: u64, tag: u64) -> Self {
        Self::new(Direction::Read, fd, buffer, range, offset, tag)
    }

    /// Writes `buffer[range]` to byte `offset` of `fd`. `tag` comes back with the completion.
    ///
    /// # Panics
    /// When `range` is not inside the buffer.
    pub fn write(fd: &Arc<OwnedFd>, buffer: Buffer, range: Range<usize>, offset: u64, tag: u64) -> Self {
        Self::new(Direction::Write, fd, buffer, range, offset, tag)
    }

    /// The buffer, of a request that was not submitted.
    pub fn into_buffer(self) -> Buffer {
        self.buffer
    }

    fn new(
        direction: Direction,
        fd: &Arc<OwnedFd>,
        buffer: Buffer,
        range: Range<usize>,
        offset: u64,
        tag: u64,
    ) -> Self {
        let inside = range.start <= range.end && range.end <= buffer.capacity();
        assert!(inside, "bytes {range:?} of a buffer of {} bytes", buffer.capacity());
        Self { direction, fd: Arc::clone(fd), buffer, range, offset, tag }
    }

    /// The submission queue entry for this request under `user_data`.
    fn entry(&mut self, user_data: u64) -> squeue::Entry {
        let fd = types::Fd(self.fd.as_raw_fd());
        // A transfer is short rather than longer than 32 bits can say.
        let length = u32::try_from(self.range.len()).unwrap_or(u32::MAX);
        let start = self.buffer.start.as_ptr().wrapping_add(self.range.start);
        match self.direction {
            Direction::Read => opcode::Read::new(fd, start, length).offset(self.offset).build(),
            Direction::Write => opcode::Write::new(fd, start, length).offset(self.offset).build(),
        }
        .user_data(user_data)
    }
}

/// All slots are taken; the request comes back untouched.
#[derive(Debug)]
pub struct Full(pub Request);

/// An operation that ended, with what was lent for it.
#[derive(Debug)]
pub struct Completion {
    /// The tag of the request.
    pub tag: u64,
    /// The buffer of the request.
    pub buffer: Buffer,
    /// Bytes transferred, which may be fewer than asked for (0 on a read: the end of the file), or the errno.
    pub result: Result<usize, i32>,
}

/// One place for an operation in flight.
#[derive(Default)]
struct Slot {
    /// How many operations this slot has seen end.
    generation: u32,
    request: Option<Request>,
}

/// The `user_data` of a cancellation. No slot has it: slots are numbered from 0 and there are few.
const CANCELLATION: u64 = u64::MAX;

/// More operations than this in one ring serve nobody.
const DEPTH_MAX: usize = 1024;

/// How often, 1 ms apart, the kernel may say that it is out of request memory before that counts as an error.
const BUSY_RETRIES: u32 = 1000;

/// A queue of at most `depth` reads and writes in flight. One thread uses it at a time; it may move between threads
/// while it is idle.
pub struct Ring {
    ring: IoUring,
    slots: Vec<Slot>,
    /// Numbers of the slots without a request.
    free: Vec<u32>,
    /// Cancellations whose own completions are still to come.
    cancellations: u32,
    submitted: u64,
}

impl Ring {
    /// A ring for `depth` operations in flight (cut to 1..=1024).
    ///
    /// # Errors
    /// What io_uring_setup(2) says; [`ProbeError`] knows the usual causes.
    pub fn new(depth: usize) -> io::Result<Self> {
        let depth = depth.clamp(1, DEPTH_MAX) as u32;
        // The completion queue is twice as long: room for every operation and a cancellation of each.
        let ring = IoUring::builder().dontfork().setup_coop_taskrun().build(depth).or_else(|error| {
            match error.raw_os_error() {
                // Kernels before 5.19 do not know coop_taskrun, which only saves interrupts.
                Some(libc::EINVAL) => IoUring::builder().dontfork().build(depth),
                _ => Err(error),
            }
        })?;
        let slots = (0..depth).map(|_| Slot::default()).collect();
        Ok(Self { ring, slots, free: (0..depth).rev().collect(), cancellations: 0, submitted: 0 })
    }

    /// How many operations can be in flight.
    pub fn depth(&self) -> usize {
        self.slots.len()
    }

    /// How many operations were submitted and have not been returned by [`Ring::wait`].
    pub fn in_flight(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// How many operations this ring was ever given.
    pub fn submitted(&self) -> u64 {
        self.submitted
    }

    /// Queues an operation; the kernel hears of it at the next [`Ring::wait`].
    ///
    /// # Errors
    /// [`Full`], with the request, when `depth` operations are in flight.
    pub fn submit(&mut self, mut request: Request) -> Result<(), Full> {
        let Some(number) = self.free.pop() else {
            return Err(Full(request));
        };
        let slot = &mut self.slots[number as usize];
        let entry = request.entry(user_data(number, slot.generation));
        slot.request = Some(request);
        // SAFETY: the entry points into the buffer of the request that the line above moved into its slot, within its
        // capacity (checked by `Request::new`), and names a descriptor that the same slot keeps open. Slots are
        // emptied only by the completion of this entry, or leaked, and nobody derefs a buffer in a slot. The buffer is
        // a mapping of its own, so moving the request moved no byte of it.
        let pushed = unsafe { self.ring.submission().push(&entry) };
        if pushed.is_err() {
            // Cancellations may take up the queue. The kernel has not seen the entry, so the request can go back.
            return match self.slots[number as usize].request.take() {
                Some(request) => {
                    self.free.push(number);
                    Err(Full(request))
                }
                None => Ok(()),
            };
        }
        self.submitted += 1;
        Ok(())
    }

    /// The next operation that ends, in any order; sleeps until there is one. `None` when nothing is in flight.
    ///
    /// # Errors
    /// What io_uring_enter(2) says, other than EINTR. What is in flight stays so: drop the ring.
    pub fn wait(&mut self) -> io::Result<Option<Completion>> {
        while self.in_flight() > 0 || self.cancellations > 0 {
            self.enter()?;
            while let Some(entry) = self.next_entry() {
                if let Some(completion) = self.settle(entry.user_data(), entry.result()) {
                    return Ok(Some(completion));
                }
            }
        }
        Ok(None)
    }

    /// The next entry of the completion queue, without asking the kernel.
    fn next_entry(&mut self) -> Option<cqueue::Entry> {
        self.ring.completion().next()
    }

    /// Asks the kernel to give up what is in flight. Each operation still ends in [`Ring::wait`], with ECANCELED or,
    /// where it was past stopping, with its result.
    pub fn cancel_all(&mut self) {
        if self.cancellations > 0 {
            return;
        }
        for number in 0..self.slots.len() {
            let slot = &self.slots[number];
            if slot.request.is_none() {
                continue;
            }
            let target = user_data(number as u32, slot.generation);
            let entry = opcode::AsyncCancel::new(target).build().user_data(CANCELLATION);
            if !self.push_cancellation(&entry) {
                return;
            }
            self.cancellations += 1;
        }
    }

    /// Queues a cancellation, making room first where needed; `false` when the kernel takes nothing any more.
    fn push_cancellation(&mut self, entry: &squeue::Entry) -> bool {
        if self.ring.submission().is_full() && self.ring.submit().is_err() {
            return false;
        }
        // SAFETY: a cancellation carries a number and no pointer; there is nothing that it could outlive.
        unsafe { self.ring.submission().push(entry) }.is_ok()
    }

    /// Hands queued entries to the kernel and, where no completion is waiting, sleeps until there is one.
    fn enter(&mut self) -> io::Result<()> {
        for _ in 0..BUSY_RETRIES {
            let want = usize::from(self.ring.completion().is_empty());
            if want == 0 && self.ring.submission().is_empty() {
                return Ok(());
            }
            let error = match self.ring.submit_and_wait(want) {
                Ok(_) => return Ok(()),
                Err(error) => error,
            };
            match error.raw_os_error() {
                // A signal; the caller looks at the queue and comes back.
                Some(libc::EINTR) => return Ok(()),
                // Out of request memory. Completions free it, so reap those first.
                Some(libc::EAGAIN | libc::EBUSY) if want == 0 => return Ok(()),
                Some(libc::EAGAIN | libc::EBUSY) => std::thread::sleep(Duration::from_millis(1)),
                _ => return Err(error),
            }
        }
        Err(io::Error::from_raw_os_error(libc::EBUSY))
    }

    /// Empties the slot of a completion. `None` for a cancellation, and for a number or generation that is not in
    /// flight: such a completion must not touch the slot's present owner.
    fn settle(&mut self, user_data: u64, result: i32) -> Option<Completion> {
        if user_data == CANCELLATION {
            self.cancellations = self.cancellations.saturating_sub(1);
            return None;
        }
        let number = user_data as u32;
        let slot = self.slots.get_mut(number as usize)?;
        if slot.generation != (user_data >> 32) as u32 {
            return None;
        }
        let request = slot.request.take()?;
        slot.generation = slot.generation.wrapping_add(1);
        self.free.push(number);
        // The kernel answers with -errno; negated it cannot be negative.
        let result = usize::try_from(result).map_err(|_| result.wrapping_neg());
        Some(Completion { tag: request.tag, buffer: request.buffer, result })
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        self.cancel_all();
        loop {
            match self.wait() {
                Ok(Some(_)) => {}
                Ok(None) => return,
                Err(_) => break,
            }
        }
        // The kernel may still write to these buffers: better to lose them than to free them under it.
        std::mem::forget(std::mem::take(&mut self.slots));
    }
}

/// Slot number and generation as the kernel carries them.
fn user_data(number: u32, generation: u32) -> u64 {
    u64::from(generation) << 32 | u64::from(number)
}

/// Why io_uring cannot be used here; the text names the cause and the remedy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProbeError {
    /// No ring: the call and its errno.
    Call {
        /// The system call, or the step, that failed.
        call: &'static str,
        /// Its errno; 0 where there was none.
        errno: i32,
        /// What `/proc/sys/kernel/io_uring_disabled` says, where it exists (kernel 6.6).
        sysctl: Option<u8>,
    },
    /// The kernel has io_uring without an operation that warmfs needs.
    Operation {
        /// Its name in the kernel's header.
        name: &'static str,
    },
    /// A read came back with other bytes than were written.
    WrongBytes,
}

impl ProbeError {
    fn call(call: &'static str, error: &io::Error) -> Self {
        let sysctl = std::fs::read_to_string("/proc/sys/kernel/io_uring_disabled").ok();
        let sysctl = sysctl.and_then(|text| text.trim().parse().ok());
        Self::Call { call, errno: error.raw_os_error().unwrap_or(0), sysctl }
    }
}

impl fmt::Display for ProbeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Call { call, errno, sysctl } => {
                let error = io::Error::from_raw_os_error(*errno);
                write!(f, "{call}: {error}: {}", remedy(*errno, *sysctl))
            }
            Self::Operation { name } => {
                write!(f, "this kernel's io_uring has no {name}: it came with Linux 5.6, update the kernel")
            }
            Self::WrongBytes => f.write_str("a read by io_uring returned wrong bytes: update the kernel"),
        }
    }
}

impl std::error::Error for ProbeError {}

/// The likely cause of `errno` and what to do about it.
fn remedy(errno: i32, sysctl: Option<u8>) -> &'static str {
    match (errno, sysctl) {
        (libc::EPERM, Some(2)) => "turned off for everyone; `sysctl kernel.io_uring_disabled=0` allows it",
        (libc::EPERM, Some(1)) => {
            "turned off for unprivileged users; `sysctl kernel.io_uring_disabled=0`, CAP_SYS_ADMIN or membership in \
             the group of kernel.io_uring_group allows it"
        }
        (libc::EPERM | libc::EACCES, _) => {
            "a seccomp filter or a security module forbids it, as containers do by default; allow io_uring_setup, \
             io_uring_enter and io_uring_register in the container's seccomp profile"
        }
        (libc::ENOSYS, _) => {
            "the kernel was built without io_uring, is older than 5.1, or a seccomp filter hides it; use a kernel \
             with CONFIG_IO_URING or allow io_uring_setup in the container's seccomp profile"
        }
        (libc::ENOMEM, _) => {
            "kernels before 5.12 charge rings to the limit of locked memory; raise it (`ulimit -l`, LimitMEMLOCK= of \
             the unit, `--ulimit memlock=-1` of the container)"
        }
        (libc::EMFILE | libc::ENFILE, _) => {
            "too many open files; raise `ulimit -n` or LimitNOFILE= of the unit"
        }
        (libc::EINVAL, _) => "the kernel's io_uring is too old; warmfs uses it from Linux 5.6",
        _ => "an unexpected answer; set the engine to `pread` if it stays",
    }
}

/// Whether io_uring works here: makes a ring, asks for the operations that warmfs uses, and moves a byte with them.
///
/// # Errors
/// [`ProbeError`], whose text is for people.
pub fn probe() -> Result<(), ProbeError> {
    let mut ring = Ring::new(1).map_err(|error| ProbeError::call("io_uring_setup", &error))?;
    probe_operations(&ring)?;
    probe_bytes(&mut ring)
}

/// Asks the kernel whether it has the operations that a [`Ring`] uses.
fn probe_operations(ring: &Ring) -> Result<(), ProbeError> {
    let mut probe = io_uring::Probe::new();
    ring.ring
        .submitter()
        .register_probe(&mut probe)
        .map_err(|error| ProbeError::call("io_uring_register", &error))?;
    missing_operation(|code| probe.is_supported(code))
        .map_or(Ok(()), |name| Err(ProbeError::Operation { name }))
}

/// The first operation that a [`Ring`] uses and that is not supported.
fn missing_operation(supported: impl Fn(u8) -> bool) -> Option<&'static str> {
    const USED: [(u8, &str); 3] = [
        (opcode::Read::CODE, "IORING_OP_READ"),
        (opcode::Write::CODE, "IORING_OP_WRITE"),
        (opcode::AsyncCancel::CODE, "IORING_OP_ASYNC_CANCEL"),
    ];
    USED.into_iter().find(|&(code, _)| !supported(code)).map(|(_, name)| name)
}

/// Writes a byte to a file in memory and reads it back, both through the ring.
fn probe_bytes(ring: &mut Ring) -> Result<(), ProbeError> {
    const BYTE: u8 = 0xa5;
    let file = rustix::fs::memfd_create("warmfs-probe", rustix::fs::MemfdFlags::CLOEXEC)
        .map_err(|errno| ProbeError::call("memfd_create", &errno.into()))?;
    let file = Arc::new(file);
    let mut buffer = Buffer::new(1).map_err(|error| ProbeError::call("mmap", &error))?;
    buffer[0] = BYTE;
    let mut buffer = probe_one(ring, "IORING_OP_WRITE", Request::write(&file, buffer, 0..1, 0, 0))?;
    buffer[0] = 0;
    let buffer = probe_one(ring, "IORING_OP_READ", Request::read(&file, buffer, 0..1, 0, 0))?;
    if buffer[0] == BYTE { Ok(()) } else { Err(ProbeError::WrongBytes) }
}

/// One operation on a file in memory, which must move its one byte.
fn probe_one(ring: &mut Ring, call: &'static str, request: Request) -> Result<Buffer, ProbeError> {
    let busy = |_| ProbeError::call(call, &io::Error::from_raw_os_error(libc::EBUSY));
    ring.submit(request).map_err(busy)?;
    let completion = ring.wait().map_err(|error| ProbeError::call("io_uring_enter", &error))?;
    match completion {
        Some(Completion { result: Err(errno), .. }) => {
            Err(ProbeError::call(call, &io::Error::from_raw_os_error(errno)))
        }
        Some(Completion { result: Ok(1), buffer, .. }) => Ok(buffer),
        _ => Err(ProbeError::WrongBytes),
    }
}

/// A system call of io_uring, for [`refuse_in_this_thread`].
#[cfg(test)]
pub(crate) enum Call {
    Setup,
    Enter,
}

/// Makes `call` fail with `errno` in this thread, for good, by a seccomp filter: what a container does.
#[cfg(test)]
pub(crate) fn refuse_in_this_thread(call: Call, errno: i32) {
    let number = match call {
        Call::Setup => libc::SYS_io_uring_setup,
        Call::Enter => libc::SYS_io_uring_enter,
    };
    let statement = |code: u32, k: u32| libc::sock_filter { code: code as u16, jt: 0, jf: 0, k };
    let mut skip_others = statement(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, number as u32);
    skip_others.jf = 1;
    let mut filter = [
        statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0),
        skip_others,
        statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ERRNO | errno as u32),
        statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: takes no pointer; it only keeps this thread from gaining privileges, which it needs to filter itself.
    assert_eq!(unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) }, 0);
    // SAFETY: `program` and the filter that it points to live past the call, which copies them; the length is right.
    let rc = unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) };
    assert_eq!(rc, 0, "{}", io::Error::last_os_error());
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::unix::fs::FileExt;
    use std::time::Instant;

    const CAPACITY: usize = 64 << 10;

    fn buffer() -> Buffer {
        Buffer::new(CAPACITY).unwrap()
    }

    /// A file of `bytes` and the descriptor for a ring.
    fn file_of(bytes: &[u8]) -> (std::fs::File, Arc<OwnedFd>) {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(bytes).unwrap();
        let fd = Arc::new(file.try_clone().unwrap().into());
        (file, fd)
    }

    fn pattern(len: usize) -> Vec<u8> {
        (0..len).map(|i| (i * 31 % 251) as u8).collect()
    }

    fn one(ring: &mut Ring, request: Request) -> Completion {
        ring.submit(request).unwrap();
        ring.wait().unwrap().unwrap()
    }

    /// xorshift64: a seed makes a run.
    fn random(state: &mut u64) -> u64 {
        *state ^= *state << 13;
        *state ^= *state >> 7;
        *state ^= *state << 17;
        *state
    }

    #[test]
    fn a_buffer_is_zeroed_aligned_and_of_fixed_size() {
        let buffer = buffer();
        assert_eq!(buffer.capacity(), CAPACITY);
        assert_eq!(buffer.as_ptr() as usize % 4096, 0);
        assert!(buffer.iter().all(|&b| b == 0));
        assert_eq!(Buffer::new(0).unwrap_err().raw_os_error(), Some(libc::EINVAL));
    }

    #[test]
    #[should_panic(expected = "of a buffer of")]
    fn a_range_outside_the_buffer_never_reaches_the_kernel() {
        let (_file, fd) = file_of(b"");
        let _ = Request::read(&fd, buffer(), 1..CAPACITY + 1, 0, 0);
    }

    #[test]
    fn reads_and_writes_the_range_and_nothing_else() {
        let bytes = pattern(CAPACITY);
        let (file, fd) = file_of(&bytes);
        let mut ring = Ring::new(4).unwrap();
        let read = one(&mut ring, Request::read(&fd, buffer(), 100..300, 1000, 7));
        assert_eq!((read.tag, read.result), (7, Ok(200)));
        assert_eq!(read.buffer[100..300], bytes[1000..1200]);
        assert!(read.buffer[..100].iter().chain(&read.buffer[300..]).all(|&b| b == 0));

        let write = one(&mut ring, Request::write(&fd, read.buffer, 100..300, 5000, 8));
        assert_eq!((write.tag, write.result), (8, Ok(200)));
        let mut there = vec![0; CAPACITY];
        file.read_exact_at(&mut there, 0).unwrap();
        assert_eq!(there[5000..5200], bytes[1000..1200]);
        assert_eq!(there[..5000], bytes[..5000]);
        assert_eq!(there[5200..], bytes[5200..]);
        assert_eq!((ring.in_flight(), ring.submitted()), (0, 2));
        assert!(ring.wait().unwrap().is_none(), "nothing in flight: does not block");
    }

    #[test]
    fn bug_107_a_short_read_is_reported_as_short() {
        let (_file, fd) = file_of(&pattern(1000));
        let mut ring = Ring::new(1).unwrap();
        let at_end = one(&mut ring, Request::read(&fd, buffer(), 0..4096, 900, 0));
        assert_eq!(at_end.result, Ok(100));
        let beyond = one(&mut ring, Request::read(&fd, at_end.buffer, 0..4096, 1000, 0));
        assert_eq!(beyond.result, Ok(0));
    }

    #[test]
    fn an_errno_is_positive_and_the_kernels_own() {
        let mut ring = Ring::new(2).unwrap();
        let write_only: Arc<OwnedFd> =
            Arc::new(std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap().into());
        let read = one(&mut ring, Request::read(&write_only, buffer(), 0..1, 0, 0));
        assert_eq!(read.result, Err(libc::EBADF));
        let write = one(&mut ring, Request::write(&write_only, read.buffer, 0..1, 0, 0));
        assert_eq!(write.result, Err(libc::ENOSPC));
        let directory: Arc<OwnedFd> = Arc::new(std::fs::File::open("/").unwrap().into());
        assert_eq!(
            one(&mut ring, Request::read(&directory, write.buffer, 0..1, 0, 0)).result,
            Err(libc::EISDIR)
        );
    }

    #[test]
    fn a_full_ring_gives_the_request_back() {
        let (_file, fd) = file_of(&pattern(10));
        let mut ring = Ring::new(2).unwrap();
        for tag in 0..2 {
            ring.submit(Request::read(&fd, buffer(), 0..10, 0, tag)).unwrap();
        }
        let Full(request) = ring.submit(Request::read(&fd, buffer(), 0..10, 0, 2)).unwrap_err();
        assert_eq!(request.into_buffer().capacity(), CAPACITY);
        let mut tags: Vec<u64> = (0..2).map(|_| ring.wait().unwrap().unwrap().tag).collect();
        tags.sort_unstable();
        assert_eq!(tags, [0, 1]);
        ring.submit(Request::read(&fd, buffer(), 0..10, 0, 3)).unwrap();
    }

    #[test]
    fn the_descriptor_lives_until_its_completion() {
        let (file, fd) = file_of(&pattern(10));
        drop(file);
        let mut ring = Ring::new(1).unwrap();
        ring.submit(Request::read(&fd, buffer(), 0..10, 0, 0)).unwrap();
        // Queued but not handed over: were the number closed now, the kernel would read whatever file gets it next.
        drop(fd);
        let (_other, _other_fd) = file_of(&[0xff; 10]);
        let completion = ring.wait().unwrap().unwrap();
        assert_eq!(completion.result, Ok(10));
        assert_eq!(completion.buffer[..10], pattern(10));
    }

    /// Goal: memory is never freed under the kernel, and a drop ends. The reads wait on a pipe that never delivers;
    /// the ring is dropped with some handed over and some only queued; afterwards the pipe's next bytes must still be
    /// there, for no cancelled read may have taken them.
    #[test]
    fn a_drop_cancels_and_waits_for_what_is_in_flight() {
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        let reader = Arc::new(reader);
        let start = Instant::now();
        let mut ring = Ring::new(8).unwrap();
        let (_file, fd) = file_of(&pattern(10));
        for tag in 0..4 {
            ring.submit(Request::read(&reader, buffer(), 0..10, 0, tag)).unwrap();
        }
        ring.submit(Request::read(&fd, buffer(), 0..10, 0, 99)).unwrap();
        assert_eq!(ring.wait().unwrap().unwrap().tag, 99);
        for tag in 4..8 {
            ring.submit(Request::read(&reader, buffer(), 0..10, 0, tag)).unwrap();
        }
        drop(ring);
        assert!(start.elapsed() < Duration::from_secs(5));
        assert_eq!(Arc::strong_count(&reader), 1, "all requests were returned");
        rustix::io::write(&writer, b"still here").unwrap();
        let mut there = [0; 10];
        assert_eq!(rustix::io::read(&*reader, &mut there).unwrap(), 10);
        assert_eq!(&there, b"still here");
    }

    #[test]
    fn cancelled_operations_come_back_as_such_and_the_ring_goes_on() {
        let (reader, _writer) = rustix::pipe::pipe().unwrap();
        let reader = Arc::new(reader);
        let mut ring = Ring::new(3).unwrap();
        for tag in 0..3 {
            ring.submit(Request::read(&reader, buffer(), 0..10, 0, tag)).unwrap();
        }
        ring.cancel_all();
        ring.cancel_all();
        for _ in 0..3 {
            assert_eq!(ring.wait().unwrap().unwrap().result, Err(libc::ECANCELED));
        }
        assert!(ring.wait().unwrap().is_none());
        let (_file, fd) = file_of(&pattern(10));
        assert_eq!(one(&mut ring, Request::read(&fd, buffer(), 0..10, 0, 0)).result, Ok(10));
    }

    #[test]
    fn a_completion_of_another_generation_finds_nothing() {
        let (_file, fd) = file_of(&pattern(10));
        let mut ring = Ring::new(1).unwrap();
        one(&mut ring, Request::read(&fd, buffer(), 0..10, 0, 0));
        ring.submit(Request::read(&fd, buffer(), 0..10, 0, 1)).unwrap();
        assert!(ring.settle(user_data(0, 0), 10).is_none(), "the generation before");
        assert!(ring.settle(user_data(0, 2), 10).is_none(), "a generation to come");
        assert!(ring.settle(user_data(1, 1), 10).is_none(), "no such slot");
        assert_eq!(ring.in_flight(), 1);
        assert_eq!(ring.wait().unwrap().unwrap().tag, 1);
        assert!(ring.settle(user_data(0, 1), 10).is_none(), "the same twice");
    }

    /// Goal: 10,000 operations in flight together do to a file what the same calls one by one would. Method: each of
    /// 16 slots owns a region of the file, so that the order within a round does not matter, and a model says what
    /// must be there.
    #[test]
    fn ten_thousand_random_operations_agree_with_pread() {
        const DEPTH: usize = 16;
        const REGION: usize = CAPACITY;
        let seed = 0x9e37_79b9_7f4a_7c15;
        let mut state = seed;
        let mut model = pattern(DEPTH * REGION);
        let (file, fd) = file_of(&model);
        let mut ring = Ring::new(DEPTH).unwrap();
        let mut buffers: Vec<Buffer> = (0..DEPTH).map(|_| buffer()).collect();
        for _ in 0..10_000 / DEPTH {
            let mut plans = Vec::new();
            for region in 0..DEPTH {
                let start = random(&mut state) as usize % REGION;
                let len = 1 + random(&mut state) as usize % (REGION - start);
                let at = region * REGION + start;
                let mut buffer = buffers.pop().unwrap();
                let writes = random(&mut state).is_multiple_of(2);
                let request = if writes {
                    let value = random(&mut state) as u8;
                    buffer[start..start + len].fill(value);
                    model[at..at + len].fill(value);
                    Request::write(&fd, buffer, start..start + len, at as u64, region as u64)
                } else {
                    Request::read(&fd, buffer, start..start + len, at as u64, region as u64)
                };
                plans.push((start, len));
                ring.submit(request).unwrap();
            }
            while let Some(completion) = ring.wait().unwrap() {
                let region = completion.tag as usize;
                let (start, len) = plans[region];
                assert_eq!(completion.result, Ok(len), "seed {seed:#x}");
                let at = region * REGION + start;
                assert_eq!(
                    completion.buffer[start..start + len],
                    model[at..at + len],
                    "seed {seed:#x}: {len} bytes at {at}"
                );
                buffers.push(completion.buffer);
            }
        }
        let mut there = vec![0; model.len()];
        file.read_exact_at(&mut there, 0).unwrap();
        assert!(there == model, "seed {seed:#x}");
        assert_eq!(ring.submitted(), 10_000);
    }

    /// Goal: a signal during the wait is no error and loses nothing. Method: one read waits on a pipe while the
    /// thread gets 200 signals; then the pipe delivers.
    #[test]
    fn bug_106_signals_during_a_wait_are_no_error() {
        let signal = signal_hook::consts::SIGWINCH;
        let flag = Arc::new(std::sync::atomic::AtomicBool::new(false));
        let id = signal_hook::flag::register(signal, Arc::clone(&flag)).unwrap();
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        let (tell, told) = std::sync::mpsc::channel();
        let waiter = std::thread::spawn(move || {
            // SAFETY: takes nothing and has no precondition; it names the calling thread.
            tell.send(unsafe { libc::pthread_self() }).unwrap();
            let mut ring = Ring::new(1).unwrap();
            one(&mut ring, Request::read(&Arc::new(reader), buffer(), 0..10, 0, 0)).result
        });
        let thread = told.recv().unwrap();
        for _ in 0..200 {
            // SAFETY: the thread is alive, for its read ends only by the write below; the signal has a handler.
            unsafe { libc::pthread_kill(thread, signal) };
            std::thread::sleep(Duration::from_micros(200));
        }
        rustix::io::write(&writer, b"0123456789").unwrap();
        assert_eq!(waiter.join().unwrap(), Ok(10));
        assert!(flag.load(std::sync::atomic::Ordering::Relaxed), "signals did arrive");
        signal_hook::low_level::unregister(id);
    }

    #[test]
    fn probe_says_yes_here() {
        assert_eq!(probe(), Ok(()));
    }

    #[test]
    fn bug_105_a_refused_ring_names_cause_and_remedy() {
        for (errno, cause) in [(libc::EPERM, "seccomp"), (libc::ENOSYS, "seccomp"), (libc::ENOMEM, "memlock")]
        {
            let refused = std::thread::spawn(move || {
                refuse_in_this_thread(Call::Setup, errno);
                probe()
            });
            let error = refused.join().unwrap().unwrap_err();
            assert!(matches!(error, ProbeError::Call { errno: e, .. } if e == errno), "{error:?}");
            let text = error.to_string();
            assert!(text.starts_with("io_uring_setup: ") && text.contains(cause), "{text}");
        }
        let off = ProbeError::Call { call: "io_uring_setup", errno: libc::EPERM, sysctl: Some(2) };
        assert!(off.to_string().contains("sysctl kernel.io_uring_disabled=0"), "{off}");
    }

    #[test]
    fn bug_108_a_kernel_without_the_read_operation_is_found_out() {
        assert_eq!(missing_operation(|_| true), None);
        assert_eq!(missing_operation(|code| code != opcode::Read::CODE), Some("IORING_OP_READ"));
        assert!(ProbeError::Operation { name: "IORING_OP_READ" }.to_string().contains("5.6"));
    }
}
