//! Stands between the broker's bytes and the client, and changes those content headers that the client would not
//! survive.
//!
//! The client decodes tables by recursion on a thread with 2 MiB of stack: a header nested some hundred deep ends the
//! process, with every consumer in it. A text of a property or a name of a header that is not UTF-8, or a header frame
//! that is larger than the agreed size (the broker sends those: it does not cut the headers of a message up), ends the
//! connection; the message comes again on the next one, and ends that too. Any publisher can send all of these, and
//! the broker carries them on.
//!
//! Such a header frame is replaced by one that the client can read. It says why, in [`UNREADABLE`], and has the
//! properties as they came, as bytes, in [`RAW`], where these fit. Everything else passes unchanged.

mod content;
mod stream;

use content::repaired;
pub(in crate::rabbitmq) use stream::Guarded;

/// Why a message could not be read, as text.
pub(super) const UNREADABLE: &str = "windlass-unreadable";

/// The properties of a message that could not be read: flags and values, encoded as they came.
pub(super) const RAW: &str = "windlass-unreadable-properties";

const METHOD: u8 = 1;
const HEADER: u8 = 2;
const BODY: u8 = 3;
const HEARTBEAT: u8 = 8;
const END: u8 = 0xce;

/// Type, channel and length.
const HEAD: usize = 7;

/// `connection.tune`, by class and method.
const TUNE: [u8; 4] = [0, 10, 0, 30];

/// Looks at the frames of one connection, as their bytes come. A new connection has a new one.
#[derive(Debug)]
pub(in crate::rabbitmq) struct Guard {
    /// The largest frame that the client takes; zero is no limit.
    frame_max: u32,
    state: State,
    /// What was not yet passed on: the head of a frame, or all of it.
    held: Vec<u8>,
}

#[derive(Debug, Clone, Copy)]
enum State {
    /// In the head of a frame.
    Head,
    /// In a frame that nobody needs to look at; so many bytes are left of it.
    Pass(usize),
    /// In a frame that is looked at; it has so many bytes.
    Hold(usize),
    /// This is not AMQP 0-9-1. The client says so best.
    Off,
}

impl Guard {
    /// For a connection on which the client asks for frames of at most `frame_max` bytes; zero leaves it to the
    /// broker.
    pub(in crate::rabbitmq) fn new(frame_max: u32) -> Self {
        Self { frame_max, state: State::Head, held: Vec::new() }
    }

    /// Takes what came and adds to `out` what the client may read. What is not added yet comes with later bytes.
    pub(in crate::rabbitmq) fn pass(&mut self, mut input: &[u8], out: &mut Vec<u8>) {
        while !input.is_empty() {
            let wanted = match self.state {
                State::Off => input.len(),
                State::Pass(left) => left,
                State::Head => HEAD - self.held.len(),
                State::Hold(len) => len - self.held.len(),
            };
            let (taken, rest) = input.split_at(wanted.min(input.len()));
            input = rest;
            match self.state {
                State::Off => out.extend_from_slice(taken),
                State::Pass(left) => {
                    out.extend_from_slice(taken);
                    self.state =
                        if taken.len() == left { State::Head } else { State::Pass(left - taken.len()) };
                }
                State::Head => {
                    self.held.extend_from_slice(taken);
                    if self.held.len() == HEAD {
                        self.head(out);
                    }
                }
                State::Hold(len) => {
                    self.held.extend_from_slice(taken);
                    if self.held.len() == len {
                        self.frame(out);
                    }
                }
            }
        }
    }

    /// A head is complete.
    fn head(&mut self, out: &mut Vec<u8>) {
        let &[kind, channel_high, channel_low, a, b, c, d] = self.held.as_slice() else { return };
        let payload = usize::try_from(u32::from_be_bytes([a, b, c, d])).unwrap_or(usize::MAX);
        let left = payload.saturating_add(1);
        self.state = match kind {
            HEADER => State::Hold(left.saturating_add(HEAD)),
            // The connection's own methods are few: one of them says how large a frame may be.
            METHOD if [channel_high, channel_low] == [0, 0] => State::Hold(left.saturating_add(HEAD)),
            METHOD | BODY | HEARTBEAT => State::Pass(left),
            _ => State::Off,
        };
        if !matches!(self.state, State::Hold(_)) {
            out.append(&mut self.held);
        }
    }

    /// A frame that is looked at is complete.
    fn frame(&mut self, out: &mut Vec<u8>) {
        let frame = self.held.as_slice();
        self.state = if frame.last() == Some(&END) { State::Head } else { State::Off };
        let payload = frame.get(HEAD..frame.len() - 1).unwrap_or_default();
        let is_method = frame.first() == Some(&METHOD);
        if is_method && payload.starts_with(&TUNE) {
            self.frame_max = agreed(self.frame_max, payload);
        }
        let repaired = if is_method { None } else { repaired(payload, self.frame_max) };
        match repaired {
            Some(payload) => {
                out.extend_from_slice(&frame[..3]);
                out.extend_from_slice(&u32::try_from(payload.len()).unwrap_or(u32::MAX).to_be_bytes());
                out.extend_from_slice(&payload);
                out.push(END);
            }
            None => out.extend_from_slice(frame),
        }
        self.held.clear();
    }
}

/// The lower of what was asked for and what the broker takes at most, which follows the number of channels.
fn agreed(asked: u32, tune: &[u8]) -> u32 {
    let Some(&[a, b, c, d]) = tune.get(6..10) else { return asked };
    match (asked, u32::from_be_bytes([a, b, c, d])) {
        (0, most) => most,
        (asked, 0) => asked,
        (asked, most) => asked.min(most),
    }
}

#[cfg(test)]
mod tests {
    use lapin::BasicProperties;
    use lapin::protocol::basic::parse_properties;
    use lapin::types::{AMQPValue, FieldTable, LongString};
    use proptest::prelude::{ProptestConfig, any, prop_assert_eq, proptest};

    use super::super::samples::{delivery, encoded, short, table_of};
    use super::super::{dead_letter_copy, received};
    use super::{END, Guard};
    use crate::source::DeadLetter;

    const AT: std::time::SystemTime = std::time::SystemTime::UNIX_EPOCH;

    fn frame(kind: u8, channel: u16, payload: &[u8]) -> Vec<u8> {
        let len = u32::try_from(payload.len()).expect("a small frame").to_be_bytes();
        [&[kind][..], &channel.to_be_bytes(), &len, payload, &[END]].concat()
    }

    fn header(properties: &[u8]) -> Vec<u8> {
        frame(2, 1, &[&[0, 60, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7][..], properties].concat())
    }

    fn of(properties: &BasicProperties) -> Vec<u8> {
        header(&encoded(properties))
    }

    /// What the client gets, in pieces of `piece` bytes.
    fn passed(guard: &mut Guard, bytes: &[u8], piece: usize) -> Vec<u8> {
        let mut out = Vec::new();
        bytes.chunks(piece.max(1)).for_each(|piece| guard.pass(piece, &mut out));
        out
    }

    /// The properties of a header frame, as the client reads them.
    fn read(frame: &[u8]) -> BasicProperties {
        let (rest, properties) =
            parse_properties(&frame[7 + 12..frame.len() - 1]).expect("readable properties");
        assert!(rest.is_empty());
        properties
    }

    fn reason(properties: &BasicProperties) -> String {
        match table_of(properties).get("windlass-unreadable") {
            Some(AMQPValue::LongString(text)) => text.to_string(),
            other => panic!("no reason: {other:?}"),
        }
    }

    fn raw(properties: &BasicProperties) -> Option<Vec<u8>> {
        match table_of(properties).get("windlass-unreadable-properties") {
            Some(AMQPValue::ByteArray(bytes)) => Some(bytes.as_slice().to_vec()),
            _ => None,
        }
    }

    /// Properties with one header, nested so deep, and an id behind it.
    fn deep(depth: usize, is_table: bool) -> Vec<u8> {
        let per_level = if is_table { 7 } else { 5 };
        let mut table = vec![1, b'h'];
        for level in (0..depth).rev() {
            let inner = u32::try_from(1 + level * per_level + if is_table { 2 } else { 0 }).expect("small");
            table.push(if is_table { b'F' } else { b'A' });
            table.extend(inner.to_be_bytes());
            if is_table {
                table.extend([1, b'k']);
            }
        }
        table.push(b'V');
        let len = u32::try_from(table.len()).expect("small");
        [&[0x20, 0x80][..], &len.to_be_bytes(), &table, &[3, b'm', b'-', b'1']].concat()
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn what_the_client_can_read_passes_unchanged(
            headers in super::super::samples::headers(), body in proptest::collection::vec(any::<u8>(), 0..600),
            piece in 1_usize..700,
        ) {
            let message = crate::message::Message::new("").with_headers(headers);
            let sent = super::super::outgoing(&message, 0).expect("sendable");
            let frames = [
                frame(1, 0, &[0, 10, 0, 50]), frame(1, 1, &[0, 60, 0, 60, 1, 2]), of(&sent.properties),
                frame(3, 1, &body), frame(8, 0, &[]), of(&BasicProperties::default()),
            ];
            let bytes = frames.concat();
            prop_assert_eq!(passed(&mut Guard::new(0), &bytes, piece), bytes);
        }

        #[test]
        fn no_bytes_at_all_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200), piece in 1_usize..50) {
            passed(&mut Guard::new(4_096), &bytes, piece);
            let frame = header(&bytes);
            let out = passed(&mut Guard::new(4_096), &[frame, super::super::samples::heartbeat()].concat(), piece);
            // Whatever came, the client can read what it gets.
            read(&out[..out.len() - 8]);
        }
    }

    #[test]
    fn headers_nested_too_deep_are_replaced_and_kept_as_bytes() {
        for (depth, is_table) in
            [100, 1_000, 5_000, 15_000].into_iter().flat_map(|depth| [(depth, true), (depth, false)])
        {
            let properties = deep(depth, is_table);
            let next = of(&BasicProperties::default().with_message_id(short("next")));
            let out = passed(&mut Guard::new(0), &[header(&properties), next.clone()].concat(), 1_000);
            let (changed, rest) = out.split_at(out.len() - next.len());
            assert_eq!(rest, next);
            let wire = read(changed);
            assert_eq!(wire.message_id(), &Some(short("m-1")));
            assert!(reason(&wire).contains("64 deep"));
            assert_eq!(raw(&wire), Some(properties));
        }
        let fine = header(&deep(64, true));
        assert_eq!(passed(&mut Guard::new(0), &fine, 7), fine);
    }

    #[test]
    fn what_is_not_utf8_is_replaced_and_the_rest_stays() {
        // A header and the id, which is Latin-1.
        let properties = [&[0x20, 0x80][..], &[0, 0, 0, 4, 1, b'h', b't', 1], &[2, 0xe4, 0xf6]].concat();
        let wire = read(&passed(&mut Guard::new(131_072), &header(&properties), 3));
        assert_eq!(wire.message_id(), &None);
        assert_eq!(table_of(&wire).get("h"), Some(&AMQPValue::Boolean(true)));
        assert_eq!(raw(&wire), Some(properties));
        // The name of a header.
        let properties = [&[0x20, 0x80][..], &[0, 0, 0, 4, 1, 0xe4, b't', 1], &[1, b'm']].concat();
        let wire = read(&passed(&mut Guard::new(131_072), &header(&properties), 3));
        assert_eq!(wire.message_id(), &Some(short("m")));
        assert!(reason(&wire).contains("UTF-8"));
    }

    #[test]
    fn a_header_frame_above_the_agreed_size_is_replaced() {
        let tune = |frame_max: u32| {
            let payload = [&[0, 10, 0, 30, 7, 255][..], &frame_max.to_be_bytes(), &[0, 60]].concat();
            frame(1, 0, &payload)
        };
        let mut table = FieldTable::default();
        table.insert(short("large"), AMQPValue::LongString(LongString::from(vec![b'x'; 20_000])));
        let large = of(&BasicProperties::default().with_message_id(short("m-1")).with_headers(table));
        for (asked, most) in [(4_096, 131_072), (0, 4_096), (4_096, 0), (131_072, 4_096)] {
            let tune = tune(most);
            let out = passed(&mut Guard::new(asked), &[tune.clone(), large.clone()].concat(), 4_000);
            let changed = &out[tune.len()..];
            assert!(changed.len() <= 4_096);
            let wire = read(changed);
            assert_eq!(wire.message_id(), &Some(short("m-1")));
            assert!(reason(&wire).contains("20"), "{}", reason(&wire));
            assert_eq!(raw(&wire), None);
        }
        let tune = tune(131_072);
        let bytes = [tune, large].concat();
        assert_eq!(passed(&mut Guard::new(0), &bytes, 4_000), bytes);
    }

    #[test]
    fn broken_properties_are_replaced_by_readable_ones() {
        let broken: [&[u8]; 6] = [
            &[],
            &[0x80],
            &[0x80, 0x00, 9, b'x'],
            // A table that is longer than the frame, one whose entry is longer than it, and one of an unknown type.
            &[0x20, 0x00, 0xff, 0xff, 0xff, 0xff],
            &[0x20, 0x00, 0, 0, 0, 7, 1, b'h', b'S', 0, 0, 0, 9],
            &[0x20, 0x00, 0, 0, 0, 3, 1, b'h', b'?'],
        ];
        for properties in broken {
            let wire = read(&passed(&mut Guard::new(4_096), &header(properties), 2));
            assert_eq!(raw(&wire).as_deref(), Some(properties));
        }
    }

    #[test]
    fn what_is_no_frame_passes_unchanged() {
        for bytes in
            [&b"AMQP\x00\x00\x09\x01"[..], b"HTTP/1.1 400 Bad Request", &[2, 0, 1, 0, 0, 0, 1, 5, 0xcd, 2, 2]]
        {
            let mut guard = Guard::new(0);
            let out = passed(&mut guard, bytes, 3);
            assert!(out.starts_with(bytes) || bytes[0] == 2, "{out:?}");
        }
    }

    #[test]
    fn an_unreadable_message_is_known_as_one_and_its_dead_letter_has_the_bytes() {
        let properties = deep(15_000, true);
        let wire = read(&passed(&mut Guard::new(0), &header(&properties), 10_000));
        let received = received(delivery(wire, b"body"), AT);
        let cause = received.unreadable.expect("said").cause();
        assert_eq!(cause.code(), "headers_unreadable");
        let message = received.message;
        let letter = DeadLetter::new(cause, &message, "orders", AT);
        let copy = dead_letter_copy(&message, &letter, 0).expect("no limit");
        assert_eq!(raw(&copy.properties), Some(properties));
        assert_eq!(copy.body.as_ref(), b"body");
        // Where they do not fit, the rest goes.
        let copy = dead_letter_copy(&message, &letter, 4_096).expect("it always goes somewhere");
        assert_eq!(raw(&copy.properties), None);
    }
}
