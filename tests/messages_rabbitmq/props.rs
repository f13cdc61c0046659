//! The properties of a message as they are encoded, to send what no client would, and to compare byte by byte.

pub(crate) const CONTENT_TYPE: usize = 0;
pub(crate) const CONTENT_ENCODING: usize = 1;
const HEADERS: usize = 2;
pub(crate) const DELIVERY_MODE: usize = 3;
pub(crate) const PRIORITY: usize = 4;
pub(crate) const EXPIRATION: usize = 7;
pub(crate) const MESSAGE_ID: usize = 8;
pub(crate) const TIMESTAMP: usize = 9;
pub(crate) const USER_ID: usize = 11;
const COUNT: usize = 14;

/// Encoded properties, each where it is set.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Props([Option<Vec<u8>>; COUNT]);

/// A header: its name, the code of its type, and its value without the length that some types have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) name: Vec<u8>,
    pub(crate) code: u8,
    pub(crate) value: Vec<u8>,
}

impl Entry {
    pub(crate) fn new(name: impl AsRef<[u8]>, code: u8, value: impl AsRef<[u8]>) -> Self {
        Self { name: name.as_ref().to_vec(), code, value: value.as_ref().to_vec() }
    }

    pub(crate) fn text(name: &str, value: &str) -> Self {
        Self::new(name, b'S', value)
    }

    pub(crate) fn is(&self, name: &str) -> bool {
        self.name == name.as_bytes()
    }
}

/// The types whose values have a length before them.
fn has_length(code: u8) -> bool {
    matches!(code, b'S' | b'x' | b'A' | b'F')
}

/// A value with the code of its type: an element of a list.
pub(crate) fn value(code: u8, bytes: impl AsRef<[u8]>) -> Vec<u8> {
    let bytes = bytes.as_ref();
    let mut out = vec![code];
    if has_length(code) {
        out.extend(u32::try_from(bytes.len()).unwrap().to_be_bytes());
    }
    out.extend(bytes);
    out
}

/// What is in a table.
pub(crate) fn table(entries: &[Entry]) -> Vec<u8> {
    let mut out = Vec::new();
    for Entry { name, code, value: bytes } in entries {
        out.push(u8::try_from(name.len()).unwrap());
        out.extend(name);
        out.extend(value(*code, bytes));
    }
    out
}

/// Tables within tables, so many deep.
pub(crate) fn nested(depth: usize) -> Entry {
    // Each has a one-letter name, a code and a length before the next.
    const LEVEL: usize = 7;
    let mut bytes = Vec::new();
    for left in (0..depth - 1).rev() {
        bytes.extend([1, b'k', b'F']);
        bytes.extend(u32::try_from(left * LEVEL).unwrap().to_be_bytes());
    }
    Entry::new("deep", b'F', bytes)
}

impl Props {
    /// Persistent, with this id.
    pub(crate) fn of(id: &str) -> Self {
        Self::default().text(MESSAGE_ID, id).byte(DELIVERY_MODE, 2)
    }

    pub(crate) fn text(mut self, which: usize, text: impl AsRef<[u8]>) -> Self {
        let text = text.as_ref();
        self.0[which] = Some([&[u8::try_from(text.len()).unwrap()][..], text].concat());
        self
    }

    pub(crate) fn byte(mut self, which: usize, byte: u8) -> Self {
        self.0[which] = Some(vec![byte]);
        self
    }

    pub(crate) fn timestamp(mut self, seconds: u64) -> Self {
        self.0[TIMESTAMP] = Some(seconds.to_be_bytes().to_vec());
        self
    }

    pub(crate) fn headers(mut self, entries: &[Entry]) -> Self {
        let table = table(entries);
        self.0[HEADERS] = Some([&u32::try_from(table.len()).unwrap().to_be_bytes()[..], &table].concat());
        self
    }

    /// The encoded value of a property other than the headers, without a length.
    pub(crate) fn get(&self, which: usize) -> Option<&[u8]> {
        let bytes = self.0[which].as_deref()?;
        Some(if matches!(which, DELIVERY_MODE | PRIORITY | TIMESTAMP) { bytes } else { &bytes[1..] })
    }

    pub(crate) fn id(&self) -> String {
        String::from_utf8(self.get(MESSAGE_ID).expect("it has an id").to_vec()).expect("text")
    }

    /// The headers, without looking into their values.
    pub(crate) fn entries(&self) -> Vec<Entry> {
        let mut left = self.0[HEADERS].as_deref().map_or(&[][..], |bytes| &bytes[4..]);
        let mut entries = Vec::new();
        while !left.is_empty() {
            let name = take(&mut left, 1);
            let name = take(&mut left, usize::from(name[0]));
            let code = take(&mut left, 1)[0];
            let len = match code {
                b'V' => 0,
                b't' | b'b' | b'B' => 1,
                b's' | b'u' | b'U' => 2,
                b'I' | b'i' | b'f' => 4,
                b'D' => 5,
                b'l' | b'L' | b'd' | b'T' => 8,
                code if has_length(code) => len32(take(&mut left, 4)),
                code => panic!("no type has the code {code}"),
            };
            entries.push(Entry::new(name, code, take(&mut left, len)));
        }
        entries
    }

    pub(crate) fn header(&self, name: &str) -> Option<Entry> {
        self.entries().into_iter().find(|entry| entry.is(name))
    }

    /// A header that is text.
    pub(crate) fn header_text(&self, name: &str) -> Option<String> {
        let entry = self.header(name).filter(|entry| entry.code == b'S')?;
        String::from_utf8(entry.value).ok()
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let set = (0..COUNT).filter(|which| self.0[*which].is_some());
        let flags = set.fold(0_u16, |flags, which| flags | 1 << (15 - which));
        let mut out = flags.to_be_bytes().to_vec();
        self.0.iter().flatten().for_each(|bytes| out.extend(bytes));
        out
    }

    pub(crate) fn decode(bytes: &[u8]) -> Self {
        let mut left = bytes;
        let flags = take(&mut left, 2);
        let flags = u16::from_be_bytes([flags[0], flags[1]]);
        let mut props = Self::default();
        for which in (0..COUNT).filter(|which| flags & 1 << (15 - which) != 0) {
            let len = match which {
                HEADERS => 4 + len32(&left[..4]),
                DELIVERY_MODE | PRIORITY => 1,
                TIMESTAMP => 8,
                _ => 1 + usize::from(left[0]),
            };
            props.0[which] = Some(take(&mut left, len).to_vec());
        }
        assert!(left.is_empty(), "nothing follows the properties");
        props
    }
}

fn take<'a>(left: &mut &'a [u8], len: usize) -> &'a [u8] {
    let (taken, rest) = left.split_at(len);
    *left = rest;
    taken
}

fn len32(bytes: &[u8]) -> usize {
    usize::try_from(u32::from_be_bytes(bytes[..4].try_into().unwrap())).unwrap()
}
