//! The content header of one message: whether the client can read it, and one that it can.

use super::super::headers::DEEPEST;
use super::{RAW, UNREADABLE};

/// The class of messages. The client knows no other content.
const BASIC: [u8; 2] = [0, 60];

/// Class, weight and size of the body, which stand before the properties.
const BEFORE: usize = 12;

/// What a frame has beside its payload.
const AROUND: usize = 8;

/// The flag of the headers.
const HEADERS: u16 = 1 << 13;

/// The properties in the order in which they come; the first has the highest flag.
const PROPERTIES: [Kind; 14] = [
    Kind::Text,
    Kind::Text,
    Kind::Table,
    Kind::Number(1),
    Kind::Number(1),
    Kind::Text,
    Kind::Text,
    Kind::Text,
    Kind::Text,
    Kind::Number(8),
    Kind::Text,
    Kind::Text,
    Kind::Text,
    Kind::Text,
];

#[derive(Clone, Copy)]
enum Kind {
    Text,
    Table,
    Number(usize),
}

/// Why the client cannot read it.
#[derive(Clone, Copy)]
enum Fault {
    Deep,
    NotUtf8,
    Broken,
    Large { len: usize, most: usize },
}

impl Fault {
    fn reason(self) -> String {
        match self {
            Self::Deep => format!("headers are nested more than {DEEPEST} deep"),
            Self::NotUtf8 => "a property or the name of a header is not UTF-8".to_owned(),
            Self::Broken => "the properties are not encoded as AMQP 0-9-1 has it".to_owned(),
            Self::Large { len, most } => {
                format!("the header frame has {len} bytes, and {most} were agreed on")
            }
        }
    }
}

/// What was read of the properties.
#[derive(Default)]
struct Scan<'a> {
    /// Those that the client can read, with the bit of their flag, and encoded as they came; without the headers.
    properties: Vec<(u16, &'a [u8])>,
    /// The entries of the headers, where the client can read them.
    headers: Option<&'a [u8]>,
    fault: Option<Fault>,
}

/// A payload that the client can read, in place of one that it cannot; `None` where it can. A `frame_max` of zero is no
/// limit.
pub(super) fn repaired(payload: &[u8], frame_max: u32) -> Option<Vec<u8>> {
    if !payload.starts_with(&BASIC) {
        return None;
    }
    let (before, raw) = payload.split_at_checked(BEFORE)?;
    let most = usize::try_from(frame_max).ok().filter(|most| *most > 0).unwrap_or(usize::MAX);
    let mut scan = Scan::default();
    let found = scan.properties(raw);
    let large = (payload.len() + AROUND > most).then_some(Fault::Large { len: payload.len() + AROUND, most });
    let fault = found.err().or(scan.fault).or(large)?;
    let reason = fault.reason();
    // As much as fits: what the client can read, and all of it as bytes.
    let tries = [(scan.headers, Some(raw)), (None, Some(raw)), (scan.headers, None), (None, None)];
    let mut written = Vec::new();
    for (headers, raw) in tries {
        written = scan.written(before, &reason, headers, raw);
        if written.len() + AROUND <= most {
            break;
        }
    }
    Some(written)
}

impl<'a> Scan<'a> {
    /// Stops at what cannot be told apart from what follows.
    fn properties(&mut self, raw: &'a [u8]) -> Result<(), Fault> {
        let mut left = Bytes(raw);
        let flags = left.u16()?;
        for (index, kind) in (0_u16..).zip(PROPERTIES) {
            let flag = 1 << (15 - index);
            if flags & flag == 0 {
                continue;
            }
            let start = left.0;
            match kind {
                Kind::Table => {
                    let len = left.len32()?;
                    let entries = left.take(len)?;
                    match check(entries) {
                        Ok(()) => self.headers = Some(entries),
                        Err(fault) => self.fault = self.fault.or(Some(fault)),
                    }
                }
                Kind::Text => {
                    let len = usize::from(left.u8()?);
                    if std::str::from_utf8(left.take(len)?).is_err() {
                        self.fault = self.fault.or(Some(Fault::NotUtf8));
                        continue;
                    }
                    self.properties.push((flag, &start[..1 + len]));
                }
                Kind::Number(len) => {
                    left.take(len)?;
                    self.properties.push((flag, &start[..len]));
                }
            }
        }
        if left.0.is_empty() { Ok(()) } else { Err(Fault::Broken) }
    }

    fn written(&self, before: &[u8], reason: &str, headers: Option<&[u8]>, raw: Option<&[u8]>) -> Vec<u8> {
        let mut table = headers.unwrap_or_default().to_vec();
        entry(&mut table, UNREADABLE, b'S', reason.as_bytes());
        if let Some(raw) = raw {
            entry(&mut table, RAW, b'x', raw);
        }
        let flags = self.properties.iter().fold(HEADERS, |flags, (flag, _)| flags | flag);
        let mut payload = before.to_vec();
        payload.extend_from_slice(&flags.to_be_bytes());
        // Higher flags come first; the list is in their order.
        let (first, last): (Vec<_>, Vec<_>) = self.properties.iter().partition(|(flag, _)| *flag > HEADERS);
        first.iter().for_each(|(_, bytes)| payload.extend_from_slice(bytes));
        long(&mut payload, &table);
        last.iter().for_each(|(_, bytes)| payload.extend_from_slice(bytes));
        payload
    }
}

fn entry(table: &mut Vec<u8>, name: &str, code: u8, value: &[u8]) {
    table.push(u8::try_from(name.len()).unwrap_or(0));
    table.extend_from_slice(name.as_bytes());
    table.push(code);
    long(table, value);
}

fn long(to: &mut Vec<u8>, bytes: &[u8]) {
    to.extend_from_slice(&u32::try_from(bytes.len()).unwrap_or(u32::MAX).to_be_bytes());
    to.extend_from_slice(bytes);
}

/// Whether the client can read the entries of a table. By a list of those that are open, not by recursion.
fn check(entries: &[u8]) -> Result<(), Fault> {
    let mut open = vec![(Bytes(entries), true)];
    while let Some((left, is_table)) = open.last_mut() {
        if left.0.is_empty() {
            open.pop();
            continue;
        }
        if *is_table {
            let len = usize::from(left.u8()?);
            std::str::from_utf8(left.take(len)?).map_err(|_| Fault::NotUtf8)?;
        }
        let code = left.u8()?;
        let len = match code {
            b'V' => 0,
            b't' | b'b' | b'B' => 1,
            b's' | b'u' | b'U' => 2,
            b'I' | b'i' | b'f' => 4,
            b'D' => 5,
            b'l' | b'L' | b'd' | b'T' => 8,
            b'S' | b'x' | b'A' | b'F' => left.len32()?,
            _ => return Err(Fault::Broken),
        };
        let value = left.take(len)?;
        if matches!(code, b'A' | b'F') {
            if open.len() > DEEPEST {
                return Err(Fault::Deep);
            }
            open.push((Bytes(value), code == b'F'));
        }
    }
    Ok(())
}

struct Bytes<'a>(&'a [u8]);

impl<'a> Bytes<'a> {
    fn take(&mut self, len: usize) -> Result<&'a [u8], Fault> {
        let (taken, left) = self.0.split_at_checked(len).ok_or(Fault::Broken)?;
        self.0 = left;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Fault> {
        let (taken, left) = self.0.split_first_chunk().ok_or(Fault::Broken)?;
        self.0 = left;
        Ok(*taken)
    }

    fn u8(&mut self) -> Result<u8, Fault> {
        self.array::<1>().map(|[byte]| byte)
    }

    fn u16(&mut self) -> Result<u16, Fault> {
        self.array().map(u16::from_be_bytes)
    }

    fn len32(&mut self) -> Result<usize, Fault> {
        self.array().and_then(|bytes| usize::try_from(u32::from_be_bytes(bytes)).map_err(|_| Fault::Broken))
    }
}
