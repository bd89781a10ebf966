//! `fusermount3`, the set-user-ID helper that mounts and unmounts FUSE for users who may not.
//!
//! Apart from [`super::mount`], which decides and talks to the kernel, because this talks to a program: options are
//! text, where commas and backslashes need a backslash, the device comes back through a socket, and what went wrong
//! is in its standard error. `FUSERMOUNT_PATH` names another program that behaves like it.

use std::ffi::{OsStr, OsString};
use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags};

use super::mount::{MountOptions, no_device, refused};
use crate::types::{Error, ErrorKind, PathText, Result};

const PROGRAM: &str = "fusermount3";

/// Mounts by the helper and returns the FUSE device that it sends.
pub(super) fn mount(options: &MountOptions) -> Result<OwnedFd> {
    let (ours, theirs) = UnixStream::pair().map_err(|e| Error::io("make", "a socket pair", &e))?;
    let mut command = Command::new(program());
    command.arg("-o").arg(option_text(options)).arg("--").arg(&options.mountpoint);
    // The helper's end is its standard input, since that is a descriptor which is handed over without a moment in
    // which another child could inherit it.
    command.env("_FUSE_COMMFD", "0").stdin(OwnedFd::from(theirs));
    let child = start(&mut command)?;
    // Our copy of the helper's end goes, or a helper that dies would leave us waiting.
    drop(command);
    let device = receive_device(&ours);
    let complaint = finish(child)?;
    match (device, complaint) {
        (Some(device), None) => Ok(device),
        (_, complaint) => Err(mount_error(&options.mountpoint, &complaint.unwrap_or_default())),
    }
}

/// Unmounts by the helper, which only does so for the user who mounted.
pub(super) fn unmount(mountpoint: &Path, lazy: bool) -> Result<()> {
    let mut command = Command::new(program());
    command.arg("-u").args(lazy.then_some("-z")).arg("--").arg(mountpoint).stdin(Stdio::null());
    match finish(start(&mut command)?)? {
        None => Ok(()),
        Some(complaint) => {
            let place = PathText(mountpoint);
            Err(Error::new(ErrorKind::Io, "", format!("cannot unmount {place}: {complaint}")))
        }
    }
}

/// Whether there is a helper that can be run.
pub(super) fn check_present() -> Result<()> {
    finish(start(Command::new(program()).arg("--version").stdin(Stdio::null()))?).map(drop)
}

fn program() -> OsString {
    std::env::var_os("FUSERMOUNT_PATH").unwrap_or_else(|| PROGRAM.into())
}

fn start(command: &mut Command) -> Result<Child> {
    command.stdout(Stdio::null()).stderr(Stdio::piped());
    command.spawn().map_err(|e| {
        let name = command.get_program().to_string_lossy();
        refused(format!(
            "cannot run `{name}` ({e}), which mounting without root needs: `apt-get install fuse3`, or set FUSERMOUNT_PATH"
        ))
    })
}

/// Waits for its end: `None` for success, otherwise what it said.
fn finish(child: Child) -> Result<Option<String>> {
    let output = child.wait_with_output().map_err(|e| Error::io("wait for", PROGRAM, &e))?;
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Ok((!output.status.success()).then(|| if said.is_empty() { output.status.to_string() } else { said }))
}

fn mount_error(mountpoint: &Path, complaint: &str) -> Error {
    if complaint.contains("modprobe fuse") {
        return no_device();
    }
    let remedy = if complaint.contains("user_allow_other") {
        "; add the line `user_allow_other` to /etc/fuse.conf, or mount for yourself alone (--private)"
    } else if complaint.contains("/dev/fuse: Permission denied") {
        "; let users open it, with `chmod 666 /dev/fuse` as root, as most distributions do"
    } else {
        ""
    };
    refused(format!("cannot mount on {}: {complaint}{remedy}", PathText(mountpoint)))
}

/// The helper's `-o`. Its own separators inside the source's name are escaped; the subtype has none.
fn option_text(options: &MountOptions) -> OsString {
    let mut text = Vec::new();
    text.extend_from_slice(if options.read_only { b"ro" } else { b"rw" });
    text.extend_from_slice(b",nosuid,nodev,noatime,default_permissions,subtype=");
    text.extend_from_slice(options.subtype.as_bytes());
    if options.allow_other {
        text.extend_from_slice(b",allow_other");
    }
    text.extend_from_slice(b",fsname=");
    text.extend_from_slice(&escaped(&options.source));
    OsString::from_vec(text)
}

fn escaped(name: &OsStr) -> Vec<u8> {
    let mut text = Vec::with_capacity(name.len());
    for &b in name.as_bytes() {
        if matches!(b, b',' | b'\\') {
            text.push(b'\\');
        }
        text.push(b);
    }
    text
}

/// The descriptor that comes with the helper's one byte; `None` if it ended without sending any.
fn receive_device(socket: &UnixStream) -> Option<OwnedFd> {
    let mut byte = [0];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    rustix::io::retry_on_intr(|| {
        let mut slices = [IoSliceMut::new(&mut byte)];
        rustix::net::recvmsg(socket, &mut slices, &mut control, RecvFlags::CMSG_CLOEXEC)
    })
    .ok()?;
    control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_cannot_become_an_option() {
        let options = MountOptions {
            mountpoint: "/mnt".into(),
            source: "warmfs:/a,suid\\,b".into(),
            subtype: "warmfs".to_owned(),
            read_only: true,
            allow_other: false,
        };
        assert_eq!(
            option_text(&options).to_str(),
            Some(
                "ro,nosuid,nodev,noatime,default_permissions,subtype=warmfs,fsname=warmfs:/a\\,suid\\\\\\,b"
            )
        );
    }

    #[test]
    fn errors_name_the_remedy() {
        let place = Path::new("/mnt");
        let said =
            "fusermount3: option allow_other only allowed if 'user_allow_other' is set in /etc/fuse.conf";
        assert!(mount_error(place, said).to_string().contains("add the line"));
        let said = "fusermount3: fuse device not found, try 'modprobe fuse' first";
        assert!(mount_error(place, said).to_string().contains("/dev/fuse is missing"));
        let said = "fusermount3: failed to open /dev/fuse: Permission denied";
        assert!(mount_error(place, said).to_string().contains("chmod 666"));
        assert_eq!(mount_error(place, "").kind(), ErrorKind::Invalid);
    }

    #[test]
    fn a_missing_helper_is_named() {
        let e = start(&mut Command::new("/nonexistent/fusermount3")).expect_err("missing");
        assert_eq!(e.kind(), ErrorKind::Invalid);
        assert!(e.to_string().contains("apt-get install fuse3"), "{e}");
    }
}
