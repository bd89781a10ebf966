//! Rules: which requests go wrong, and how. Text to a list, and the list's verdict on one request.
//!
//! Pure, apart from the counting down of `count` and `after`: when rules are read, and how one waits for other ones,
//! is `gate`'s business. A line is a rule, all that match a request act on it in the order of the text, and the first
//! `errno` or `hang` ends the search.

use std::time::Duration;

use rustix::io::Errno;

use super::counts::Op;
use crate::types::{unescape_bytes, units};

/// Rules and how much of them is left.
#[derive(Debug, Default)]
pub(super) struct Rules(Vec<Rule>);

#[derive(Debug)]
struct Rule {
    /// Empty: all operations.
    ops: Vec<Op>,
    path: Vec<u8>,
    /// Matching requests that still go by untouched.
    after: u64,
    /// Matching requests that it still acts on.
    left: u64,
    verdict: Verdict,
}

/// What is done to one request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Verdict {
    /// It is not answered while the rules stay as they are.
    pub(super) hang: bool,
    /// Waits so much longer.
    pub(super) delay: Duration,
    /// Fails, after having waited.
    pub(super) errno: Option<Errno>,
    /// A read returns at most so many bytes.
    pub(super) short: Option<u64>,
    /// A read's first byte has its lowest bit turned over.
    pub(super) flip: bool,
}

impl Rules {
    /// One rule a line; empty lines and what follows `#` are left out. The error names the line and what is accepted.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let mut rules = Vec::new();
        for (index, line) in text.lines().enumerate() {
            let line = line.split('#').next().unwrap_or_default().trim();
            if !line.is_empty() {
                rules.push(Rule::parse(line).map_err(|e| format!("line {}: {e}", index + 1))?);
            }
        }
        Ok(Self(rules))
    }

    /// What becomes of a request for `path`, relative to the source's root. Counts it.
    pub(super) fn judge(&mut self, op: Op, path: &[u8]) -> Verdict {
        let mut verdict = Verdict::default();
        for rule in self.0.iter_mut().filter(|r| r.matches(op, path)) {
            if rule.after > 0 {
                rule.after -= 1;
                continue;
            }
            if rule.left == 0 {
                continue;
            }
            rule.left -= 1;
            verdict.add(rule.verdict);
            if verdict.hang || verdict.errno.is_some() {
                break;
            }
        }
        verdict
    }
}

impl Verdict {
    fn add(&mut self, other: Verdict) {
        self.hang |= other.hang;
        self.delay += other.delay;
        self.errno = self.errno.or(other.errno);
        self.short = [self.short, other.short].into_iter().flatten().min();
        self.flip |= other.flip;
    }
}

impl Rule {
    fn parse(line: &str) -> Result<Self, String> {
        let mut rule =
            Self { ops: vec![], path: b"*".to_vec(), after: 0, left: u64::MAX, verdict: Verdict::default() };
        for word in line.split_whitespace() {
            rule.take(word).map_err(|e| format!("`{word}`: {e}"))?;
        }
        if rule.verdict == Verdict::default() {
            return Err("it does nothing: add errno=, delay=, short=, flip or hang".to_owned());
        }
        Ok(rule)
    }

    fn take(&mut self, word: &str) -> Result<(), String> {
        let number = |text: &str| text.parse().map_err(|_| "not a number".to_owned());
        match word.split_once('=') {
            None if word == "hang" => self.verdict.hang = true,
            None if word == "flip" => self.verdict.flip = true,
            Some(("op", names)) => self.ops = parse_ops(names)?,
            Some(("path", glob)) => self.path = unescape_bytes(glob).ok_or("a backslash is written \\\\")?,
            Some(("after", n)) => self.after = number(n)?,
            Some(("count", n)) => self.left = number(n)?,
            Some(("errno", name)) => self.verdict.errno = Some(parse_errno(name)?),
            Some(("delay", time)) => self.verdict.delay = units::parse_duration(time)?,
            Some(("short", size)) => self.verdict.short = Some(units::parse_size(size)?),
            _ => {
                return Err(
                    "write op=, path=, after=, count=, errno=, delay=, short=, flip or hang".to_owned()
                );
            }
        }
        Ok(())
    }

    fn matches(&self, op: Op, path: &[u8]) -> bool {
        (self.ops.is_empty() || self.ops.contains(&op)) && glob_matches(&self.path, path)
    }
}

/// Names between commas; `*` anywhere stands for all. Release has no reply that anybody would see fail.
fn parse_ops(names: &str) -> Result<Vec<Op>, String> {
    let known = || Op::ALL.iter().filter(|(op, _)| *op != Op::Release);
    let mut ops = Vec::new();
    for name in names.split(',') {
        if name == "*" {
            return Ok(vec![]);
        }
        let all = || known().map(|(_, name)| *name).collect::<Vec<_>>().join(", ");
        let (op, _) =
            known().find(|(_, n)| *n == name).ok_or_else(|| format!("write one of {}, *", all()))?;
        ops.push(*op);
    }
    Ok(ops)
}

const ERRNOS: &[(&str, Errno)] = &[
    ("EACCES", Errno::ACCESS),
    ("EAGAIN", Errno::AGAIN),
    ("EBUSY", Errno::BUSY),
    ("ECONNRESET", Errno::CONNRESET),
    ("EDQUOT", Errno::DQUOT),
    ("EHOSTDOWN", Errno::HOSTDOWN),
    ("EINTR", Errno::INTR),
    ("EINVAL", Errno::INVAL),
    ("EIO", Errno::IO),
    ("EISDIR", Errno::ISDIR),
    ("ELOOP", Errno::LOOP),
    ("EMFILE", Errno::MFILE),
    ("ENAMETOOLONG", Errno::NAMETOOLONG),
    ("ENFILE", Errno::NFILE),
    ("ENODEV", Errno::NODEV),
    ("ENOENT", Errno::NOENT),
    ("ENOMEM", Errno::NOMEM),
    ("ENOSPC", Errno::NOSPC),
    ("ENOTCONN", Errno::NOTCONN),
    ("ENOTDIR", Errno::NOTDIR),
    ("ENXIO", Errno::NXIO),
    ("EOPNOTSUPP", Errno::OPNOTSUPP),
    ("EPERM", Errno::PERM),
    ("EREMOTEIO", Errno::REMOTEIO),
    ("EROFS", Errno::ROFS),
    ("ESTALE", Errno::STALE),
    ("ETIMEDOUT", Errno::TIMEDOUT),
];

/// A name of the table, or a number that FUSE can carry. ENOSYS is refused: the kernel would never ask again.
fn parse_errno(name: &str) -> Result<Errno, String> {
    if let Some((_, errno)) = ERRNOS.iter().find(|(n, _)| *n == name) {
        return Ok(*errno);
    }
    match name.parse() {
        Ok(n @ 1..=511) if n != libc::ENOSYS => Ok(Errno::from_raw_os_error(n)),
        _ => Err("write a name such as EIO, ESTALE or ETIMEDOUT, or a number from 1 to 511".to_owned()),
    }
}

/// `*` stands for any bytes, slashes included, `?` for one byte. Linear in time: one star is remembered at a time.
fn glob_matches(pattern: &[u8], text: &[u8]) -> bool {
    let (mut p, mut t) = (0, 0);
    let mut star = None;
    while t < text.len() {
        match pattern.get(p) {
            Some(b'*') => {
                star = Some((p, t));
                p += 1;
            }
            Some(&c) if c == b'?' || c == text[t] => {
                p += 1;
                t += 1;
            }
            _ => match star {
                Some((at, from)) => {
                    star = Some((at, from + 1));
                    p = at + 1;
                    t = from + 1;
                }
                None => return false,
            },
        }
    }
    pattern[p..].iter().all(|&c| c == b'*')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(text: &str) -> Rules {
        Rules::parse(text).expect("good rules")
    }

    #[test]
    fn globs() {
        for (pattern, text, want) in [
            ("*", "", true),
            ("*", "a/b", true),
            ("a/b*", "a/b/c.jpg", true),
            ("a/b*", "a/c", false),
            ("*.jpg", "a/x.jpg", true),
            ("*.jpg", "a/x.jpeg", false),
            ("a?c", "abc", true),
            ("a?c", "ac", false),
            ("*ab*ab", "abxabab", true),
            ("", "", true),
            ("", "a", false),
        ] {
            assert_eq!(glob_matches(pattern.as_bytes(), text.as_bytes()), want, "{pattern} {text}");
        }
    }

    #[test]
    fn count_and_after_are_used_up() {
        let mut r = rules("op=read path=a/* errno=EIO after=1 count=2");
        let mut ask = |op, path: &str| r.judge(op, path.as_bytes()).errno;
        assert_eq!(ask(Op::Open, "a/x"), None);
        assert_eq!(ask(Op::Read, "b/x"), None);
        let got: Vec<_> = (0..4).map(|_| ask(Op::Read, "a/x")).collect();
        assert_eq!(got, [None, Some(Errno::IO), Some(Errno::IO), None]);
    }

    #[test]
    fn rules_add_up_until_an_errno() {
        let mut r = rules(
            "# slow and short\nop=* delay=5ms\nop=open,read delay=1ms short=10 # both\nop=read short=4 flip\n\nop=read errno=5\nop=read hang",
        );
        let v = r.judge(Op::Read, b"x");
        assert_eq!(v.delay, Duration::from_millis(6));
        assert_eq!((v.short, v.flip, v.errno, v.hang), (Some(4), true, Some(Errno::IO), false));
        assert_eq!(r.judge(Op::Open, b"x").short, Some(10));
    }

    #[test]
    fn names_with_blanks_are_escaped() {
        assert!(rules("path=a\\x20b hang").judge(Op::Open, b"a b").hang);
    }

    #[test]
    fn mistakes_name_the_line_and_what_is_accepted() {
        for (text, hint) in [
            ("hang\nop=raed hang", "line 2: `op=raed`: write one of lookup"),
            ("op=read", "it does nothing"),
            ("op=read errno=EWHAT", "such as EIO"),
            ("errno=38", "from 1 to 511"),
            ("errno=0", "from 1 to 511"),
            ("hang=1", "flip or hang"),
            ("delay=soon", "500ms"),
            ("hang count=-1", "not a number"),
            ("op=release hang", "write one of"),
        ] {
            let e = Rules::parse(text).expect_err(text);
            assert!(e.contains(hint), "{text}: {e}");
        }
    }
}
