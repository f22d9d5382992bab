//! JSON that may stop in the middle or stand between other lines.
//!
//! A document of a tool is read line by line from where it begins, so that each object
//! knows its line and nothing behind its last bracket is touched. What was complete before
//! a cut or a mistake is kept. (`serde_json` does neither, and is used for writing.)

use super::line::{Line, Scanner};

/// Deeper nesting than this is no tool's output.
const MOST_DEPTH: usize = 64;

/// A value, and the line on which it begins.
#[derive(Clone, Debug, PartialEq)]
pub struct Json {
    line: u64,
    value: Value,
}

#[derive(Clone, Debug, PartialEq)]
enum Value {
    /// `true`, `false`, `null` or a number, as written.
    Word(String),
    Text(String),
    List(Vec<Json>),
    Object(Vec<(String, Json)>),
}

/// A document, and how its reading ended.
#[derive(Clone, Debug)]
pub struct Document {
    /// What is complete of it.
    pub value: Json,
    /// The line on which it stopped making sense, if it did.
    pub broken: Option<u64>,
    /// The input ended before it.
    pub cut: bool,
}

impl Json {
    /// The line on which it begins.
    pub fn line(&self) -> u64 {
        self.line
    }

    /// The value under that name, if this is an object that has it.
    pub fn get(&self, name: &str) -> Option<&Json> {
        self.entries()
            .find(|(other, _)| *other == name)
            .map(|(_, value)| value)
    }

    /// Names and values, if this is an object.
    pub fn entries(&self) -> impl Iterator<Item = (&str, &Json)> {
        let entries = match &self.value {
            Value::Object(entries) => entries.as_slice(),
            _ => &[],
        };
        entries.iter().map(|(name, value)| (name.as_str(), value))
    }

    /// The items, if this is a list.
    pub fn items(&self) -> &[Json] {
        match &self.value {
            Value::List(items) => items,
            _ => &[],
        }
    }

    /// The text, if it is one.
    pub fn text(&self) -> Option<&str> {
        match &self.value {
            Value::Text(text) => Some(text),
            _ => None,
        }
    }

    /// A text or a bare word; `null` is none.
    pub fn scalar(&self) -> Option<String> {
        match &self.value {
            Value::Text(text) => Some(text.clone()),
            Value::Word(word) if word != "null" => Some(word.clone()),
            _ => None,
        }
    }

    /// A whole number, also one written as text or in hexadecimal.
    pub fn number(&self) -> Option<u64> {
        super::text::number(self.scalar()?.trim().as_bytes())
    }

    /// Whether it is an object or a list without anything in it.
    pub fn is_empty(&self) -> bool {
        matches!(&self.value, Value::List(items) if items.is_empty())
            || matches!(&self.value, Value::Object(entries) if entries.is_empty())
    }

    /// All objects, at any depth, that have an entry of that name, in order.
    pub fn objects_with(&self, name: &str) -> Vec<&Json> {
        let mut found = Vec::new();
        self.collect(name, &mut found);
        found
    }

    fn collect<'j>(&'j self, name: &str, found: &mut Vec<&'j Json>) {
        match &self.value {
            Value::Object(entries) => {
                if entries.iter().any(|(other, _)| other == name) {
                    found.push(self);
                }
                entries
                    .iter()
                    .for_each(|(_, value)| value.collect(name, found));
            }
            Value::List(items) => items.iter().for_each(|item| item.collect(name, found)),
            Value::Word(_) | Value::Text(_) => {}
        }
    }
}

/// Whether a document begins at this line, given what follows it.
pub fn begins(line: &Line<'_>, after: &Scanner<'_>) -> bool {
    let body = line.body();
    let Some((&first, rest)) = body.split_first() else {
        return false;
    };
    if first != b'{' && first != b'[' {
        return false;
    }
    let next = match rest.trim_ascii_start().first() {
        Some(next) => Some(*next),
        None => after.clone().find_map(|line| line.body().first().copied()),
    };
    match (first, next) {
        (b'{', Some(b'"' | b'}')) | (b'[', Some(b'{')) => true,
        (b'[', Some(b']')) => rest.trim_ascii() == b"]" || rest.is_empty(),
        // Cut right behind the bracket.
        (b'{', None) => true,
        _ => false,
    }
}

/// Reads the document that begins at `line`; `scanner` stands behind that line and is moved behind
/// the document's last, or before the line that breaks it.
pub fn read<'a>(line: &Line<'a>, scanner: &mut Scanner<'a>) -> Document {
    let mut reader = Reader {
        scanner,
        text: line.body(),
        at: 0,
        line: line.number,
        before: None,
        broken: false,
        ended: false,
    };
    let value = reader.value(0).unwrap_or(Json {
        line: line.number,
        value: Value::List(Vec::new()),
    });
    let rest = &reader.text[reader.at.min(reader.text.len())..];
    let trailing = !reader.ended
        && !reader.broken
        && !rest
            .iter()
            .all(|byte| byte.is_ascii_whitespace() || *byte == b',');
    let broken = (reader.broken || trailing).then_some(reader.line);
    if let Some(before) = reader.before.take().filter(|_| reader.broken) {
        // The line that makes no sense here may make sense by itself.
        *reader.scanner = before;
    }
    Document {
        value,
        broken,
        cut: reader.ended,
    }
}

struct Reader<'s, 'a> {
    scanner: &'s mut Scanner<'a>,
    text: &'a [u8],
    at: usize,
    line: u64,
    /// Where the scanner stood before this line, if it is not the first.
    before: Option<Scanner<'a>>,
    broken: bool,
    ended: bool,
}

impl Reader<'_, '_> {
    /// The next byte that is no blank, from further lines if need be.
    fn peek(&mut self) -> Option<u8> {
        loop {
            while let Some(byte) = self.text.get(self.at) {
                if !byte.is_ascii_whitespace() {
                    return Some(*byte);
                }
                self.at += 1;
            }
            self.before = Some(self.scanner.clone());
            match self.scanner.next() {
                Some(line) => {
                    self.text = line.body();
                    self.line = line.number;
                    self.at = 0;
                }
                None => {
                    self.ended = true;
                    return None;
                }
            }
        }
    }

    fn stopped(&self) -> bool {
        self.broken || self.ended
    }

    fn fail<T>(&mut self) -> Option<T> {
        self.broken = true;
        None
    }

    /// A value as far as it goes; `None` if nothing of it is complete.
    fn value(&mut self, depth: usize) -> Option<Json> {
        if depth > MOST_DEPTH {
            return self.fail();
        }
        let first = self.peek()?;
        let line = self.line;
        let value = match first {
            b'{' => self.object(depth),
            b'[' => self.list(depth),
            b'"' => Value::Text(self.string()?),
            _ => Value::Word(self.word()?),
        };
        Some(Json { line, value })
    }

    fn object(&mut self, depth: usize) -> Value {
        let mut entries = Vec::new();
        while self.goes_on(b'}', entries.is_empty()) {
            if self.peek() != Some(b'"') {
                self.broken |= !self.ended;
                break;
            }
            let Some(name) = self.string() else { break };
            if self.peek() != Some(b':') {
                self.broken |= !self.ended;
                break;
            }
            self.at += 1;
            // A value that stops in the middle is kept if it is made of parts.
            entries.extend(self.value(depth + 1).map(|value| (name, value)));
        }
        Value::Object(entries)
    }

    fn list(&mut self, depth: usize) -> Value {
        let mut items = Vec::new();
        while self.goes_on(b']', items.is_empty()) {
            items.extend(self.value(depth + 1));
        }
        Value::List(items)
    }

    /// Steps over the opening bracket or a comma; `false` behind the closing one, or where there is none of them.
    fn goes_on(&mut self, close: u8, first: bool) -> bool {
        if self.stopped() {
            return false;
        }
        if first {
            self.at += 1;
        }
        match self.peek() {
            Some(byte) if byte == close => {
                self.at += 1;
                false
            }
            Some(_) if first => true,
            Some(b',') => {
                self.at += 1;
                true
            }
            Some(_) => {
                self.broken = true;
                false
            }
            None => false,
        }
    }

    /// A text. It must end on its line; line feeds inside are escaped.
    fn string(&mut self) -> Option<String> {
        self.at += 1;
        let mut bytes = Vec::new();
        loop {
            let Some(byte) = self.text.get(self.at).copied() else {
                // Only the last line of the input may stop inside a text.
                self.ended = self.scanner.clone().next().is_none();
                self.broken = !self.ended;
                return None;
            };
            self.at += 1;
            match byte {
                b'"' => return Some(super::text::lossy(&bytes)),
                b'\\' => {
                    let escaped = self.text.get(self.at).copied().unwrap_or(b'\\');
                    self.at += 1;
                    match escaped {
                        b'n' => bytes.push(b'\n'),
                        b'r' => bytes.push(b'\r'),
                        b't' => bytes.push(b'\t'),
                        b'u' => {
                            let code = self
                                .text
                                .get(self.at..self.at + 4)
                                .and_then(super::text::hex)
                                .and_then(|code| u32::try_from(code).ok());
                            let sign = code
                                .and_then(char::from_u32)
                                .unwrap_or(char::REPLACEMENT_CHARACTER);
                            self.at += 4;
                            bytes.extend_from_slice(sign.encode_utf8(&mut [0; 4]).as_bytes());
                        }
                        other => bytes.push(other),
                    }
                }
                other => bytes.push(other),
            }
        }
    }

    /// A number or a literal. At the very end of a cut input it may lack digits, and is dropped.
    fn word(&mut self) -> Option<String> {
        let start = self.at;
        while self
            .text
            .get(self.at)
            .is_some_and(|byte| byte.is_ascii_alphanumeric() || b"+-._".contains(byte))
        {
            self.at += 1;
        }
        let word = &self.text[start..self.at];
        let known = matches!(word, b"true" | b"false" | b"null");
        let number = word
            .first()
            .is_some_and(|byte| byte.is_ascii_digit() || *byte == b'-');
        if !known
            && !number
            && !b"true false null"
                .windows(word.len().max(1))
                .any(|part| part == word)
        {
            return self.fail();
        }
        if self.at == self.text.len() && self.scanner.clone().next().is_none() {
            self.ended = true;
            return None;
        }
        Some(super::text::lossy(word))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> (Document, Option<u64>) {
        let mut scanner = Scanner::new(text.as_bytes(), None);
        let line = scanner.next().unwrap();
        assert!(begins(&line, &scanner));
        let document = read(&line, &mut scanner);
        (document, scanner.next().map(|line| line.number))
    }

    #[test]
    fn a_document_ends_with_its_bracket() {
        let (document, next) = parse(
            "[ \n  { \"chardev\":\"dax0.0\", \"size\":68719476736 }\n]\nreconfigured 0 devices\n",
        );
        assert_eq!(
            (document.broken, document.cut, next),
            (None, false, Some(4))
        );
        let device = &document.value.items()[0];
        assert_eq!(
            device.get("size").and_then(Json::number),
            Some(68_719_476_736)
        );
        assert_eq!(device.line(), 2);
    }

    #[test]
    fn what_was_complete_before_a_cut_is_kept() {
        let (document, _) = parse("{ \"a\": [ { \"x\": 1,\n \"y\": 2 }, { \"x\": 3, \"y\": 4");
        assert!(document.cut);
        let items = document.value.get("a").unwrap().items();
        assert_eq!(items.len(), 2);
        assert_eq!(items[0].get("y").and_then(Json::number), Some(2));
        assert_eq!(items[1].get("y"), None, "4 may be the beginning of 42");
    }

    #[test]
    fn a_mistake_is_told_with_its_line() {
        let (document, next) = parse("{ \"a\": 1,\n  oops }\nmore\n");
        assert_eq!(
            (document.broken, document.cut, next),
            (Some(2), false, Some(2))
        );
        assert_eq!(document.value.get("a").and_then(Json::number), Some(1));
    }

    #[test]
    fn log_lines_and_elisions_are_no_documents() {
        for text in ["[    0.000000] x\n", "[...]\n", "[ 12]\n{\n"] {
            let mut scanner = Scanner::new(text.as_bytes(), None);
            let line = Line::new(1, scanner.next_raw().unwrap().1, false);
            assert!(!begins(&line, &scanner), "{text}");
        }
    }

    #[test]
    fn deep_nesting_is_refused_without_harm() {
        let (document, _) = parse(&format!("[{}", "{\"a\":[".repeat(10_000)));
        assert!(document.broken.is_some());
    }
}
