//! What goes to standard output: one JSON document for programs, or tables and lines for people.

use std::io::{self, Write};
use std::time::{Duration, SystemTime};

use comfy_table::{CellAlignment, Table, presets};
use serde::Serialize;

/// Writes one JSON document.
pub(crate) fn json(value: &impl Serialize) -> io::Result<()> {
    let mut out = io::stdout().lock();
    serde_json::to_writer_pretty(&mut out, value)?;
    writeln!(out)?;
    out.flush()
}

/// Writes lines.
pub(crate) fn lines(text: impl std::fmt::Display) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{text}")?;
    out.flush()
}

/// A table without lines, whose columns from `numbers_from` on are numbers.
pub(crate) fn table<const N: usize>(
    header: [&str; N],
    rows: impl IntoIterator<Item = [String; N]>,
    numbers_from: usize,
) -> String {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING).set_header(header);
    for row in rows {
        table.add_row(row.map(|cell| plain(&cell)));
    }
    for (index, column) in table.column_iter_mut().enumerate() {
        column.set_padding((0, 2));
        if index >= numbers_from {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    let lines: Vec<String> = table.lines().map(|line| line.trim_end().to_owned()).collect();
    lines.join("\n")
}

/// What a broker or a publisher wrote, with everything escaped that could steer a terminal or break a line.
pub(crate) fn plain(text: &str) -> String {
    text.chars().fold(String::with_capacity(text.len()), |mut plain, char| {
        if char.is_control() || is_invisible(char) {
            plain.extend(char.escape_default());
        } else {
            plain.push(char);
        }
        plain
    })
}

/// Marks that turn the direction of text around, or that show nothing.
fn is_invisible(char: char) -> bool {
    matches!(char, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
}

/// A number that the broker may not have told: unknown is not zero.
pub(crate) fn known<T: ToString>(number: Option<T>) -> String {
    number.map_or_else(|| "?".to_owned(), |number| number.to_string())
}

/// How long ago, in its two largest units.
pub(crate) fn age(at: SystemTime, now: SystemTime) -> String {
    let ago = now.duration_since(at).unwrap_or_default();
    let text = humantime::format_duration(Duration::from_secs(ago.as_secs())).to_string();
    text.split(' ').take(2).collect::<Vec<_>>().join(" ")
}

/// A point of time, as RFC 3339 has it.
pub(crate) fn time(at: SystemTime) -> String {
    humantime::format_rfc3339_seconds(at).to_string()
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use super::{age, plain, table};

    #[test]
    fn what_could_steer_a_terminal_is_escaped() {
        assert_eq!(plain("größe 日本 \"a\" \\"), "größe 日本 \"a\" \\");
        assert_eq!(plain("a\u{1b}[2Jb\nc\r\u{202e}d"), "a\\u{1b}[2Jb\\nc\\r\\u{202e}d");
    }

    #[test]
    fn a_table_has_no_lines_and_no_blanks_at_the_end() {
        let rows = [["orders.dlq".to_owned(), "7".to_owned()], ["a\nb".to_owned(), "1000".to_owned()]];
        let expected = "queue       messages\norders.dlq         7\na\\nb            1000";
        assert_eq!(table(["queue", "messages"], rows, 1), expected);
    }

    #[test]
    fn an_age_has_two_units_at_most() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(10 * 86_400);
        let ago = |seconds| age(now - Duration::from_secs(seconds), now);
        assert_eq!(ago(0), "0s");
        assert_eq!(ago(61), "1m 1s");
        assert_eq!(ago(86_400 * 2 + 3_600 + 5), "2days 1h");
        assert_eq!(age(now + Duration::from_secs(5), now), "0s");
    }
}
