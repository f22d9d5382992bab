//! What a scenario expects: comparisons of numbers and words.
//!
//! ```text
//! comparison  = sum ("==" | "!=" | "<=" | ">=" | "<" | ">") sum
//! sum         = term (("+" | "-") term)*          integers
//! term        = factor (("*" | "/") factor)*
//! factor      = NUMBER | "WORD" | NAME            NAME such as done, Normal.free, client.a.pages
//! ```
//!
//! A name is a run of letters, digits, `.`, `_`, `@`, `:`; a word in quotes is compared as it is.
//! Numbers may be hexadecimal, or have a unit (`128MiB`)
//! and are bytes then.

use core::fmt;

use super::file::parse_size;

/// A value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// A number; sums may be below zero.
    Number(i128),
    /// A word.
    Word(String),
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Number(number) => number.fmt(f),
            Value::Word(word) => write!(f, "\"{word}\""),
        }
    }
}

impl From<u64> for Value {
    fn from(number: u64) -> Value {
        Value::Number(number.into())
    }
}

/// Whether a comparison holds, and both sides as they came out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Compared {
    /// It holds.
    pub holds: bool,
    /// The left side.
    pub left: Value,
    /// The right side.
    pub right: Value,
}

/// Evaluates a comparison.
///
/// # Errors
/// It is none, a name is not known, or a word is calculated with.
pub fn compare(text: &str, look_up: &dyn Fn(&str) -> Option<Value>) -> Result<Compared, String> {
    for sign in ["==", "!=", "<=", ">=", "<", ">"] {
        let Some((left, right)) = split_outside_words(text, sign) else {
            continue;
        };
        let (left, right) = (evaluate(left, look_up)?, evaluate(right, look_up)?);
        let holds = match (&left, &right, sign) {
            (left, right, "==") => left == right,
            (left, right, "!=") => left != right,
            (Value::Number(left), Value::Number(right), "<=") => left <= right,
            (Value::Number(left), Value::Number(right), ">=") => left >= right,
            (Value::Number(left), Value::Number(right), "<") => left < right,
            (Value::Number(left), Value::Number(right), ">") => left > right,
            _ => return Err(format!("{text:?} compares words by size")),
        };
        return Ok(Compared { holds, left, right });
    }
    Err(format!("{text:?} compares nothing"))
}

fn split_outside_words<'a>(text: &'a str, sign: &str) -> Option<(&'a str, &'a str)> {
    let mut in_word = false;
    for (at, c) in text.char_indices() {
        in_word ^= c == '"';
        if !in_word && text[at..].starts_with(sign) {
            return Some((&text[..at], &text[at + sign.len()..]));
        }
    }
    None
}

/// Evaluates a sum.
///
/// # Errors
/// As [`compare`].
pub fn evaluate(text: &str, look_up: &dyn Fn(&str) -> Option<Value>) -> Result<Value, String> {
    let mut tokens = tokens(text)?;
    tokens.reverse();
    let value = sum(&mut tokens, look_up)?;
    match tokens.pop() {
        None => Ok(value),
        Some(token) => Err(format!("{text:?}: {token:?} is one too many")),
    }
}

fn tokens(text: &str) -> Result<Vec<String>, String> {
    let mut tokens: Vec<String> = Vec::new();
    let mut rest = text.trim_start();
    while let Some(c) = rest.chars().next() {
        let len = match c {
            '+' | '-' | '*' | '/' => 1,
            '"' => {
                rest[1..]
                    .find('"')
                    .ok_or_else(|| format!("{text:?}: a word does not end"))?
                    + 2
            }
            c if is_of_name(c) => rest.find(|c| !is_of_name(c)).unwrap_or(rest.len()),
            _ => return Err(format!("{text:?}: {c:?} means nothing")),
        };
        tokens.push(rest[..len].to_owned());
        rest = rest[len..].trim_start();
    }
    Ok(tokens)
}

fn is_of_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '@' | ':')
}

type LookUp<'a> = &'a dyn Fn(&str) -> Option<Value>;

fn sum(tokens: &mut Vec<String>, look_up: LookUp<'_>) -> Result<Value, String> {
    let mut value = term(tokens, look_up)?;
    while let Some(sign) = tokens.pop_if(|token| token == "+" || token == "-") {
        value = calculate(value, &sign, term(tokens, look_up)?)?;
    }
    Ok(value)
}

fn term(tokens: &mut Vec<String>, look_up: LookUp<'_>) -> Result<Value, String> {
    let mut value = factor(tokens, look_up)?;
    while let Some(sign) = tokens.pop_if(|token| token == "*" || token == "/") {
        value = calculate(value, &sign, factor(tokens, look_up)?)?;
    }
    Ok(value)
}

fn factor(tokens: &mut Vec<String>, look_up: LookUp<'_>) -> Result<Value, String> {
    let token = tokens.pop().ok_or("something is missing")?;
    if let Some(word) = token.strip_prefix('"') {
        return Ok(Value::Word(word.trim_end_matches('"').to_owned()));
    }
    if let Some(hex) = token.strip_prefix("0x") {
        let number = u64::from_str_radix(hex, 16).map_err(|error| format!("{token:?}: {error}"))?;
        return Ok(Value::from(number));
    }
    if token.starts_with(|c: char| c.is_ascii_digit()) {
        return parse_size(&token).map(Value::from);
    }
    look_up(&token).ok_or_else(|| format!("nothing is called {token:?}"))
}

fn calculate(left: Value, sign: &str, right: Value) -> Result<Value, String> {
    let (Value::Number(left), Value::Number(right)) = (left, right) else {
        return Err("words cannot be calculated with".to_owned());
    };
    let value = match sign {
        "+" => left.checked_add(right),
        "-" => left.checked_sub(right),
        "*" => left.checked_mul(right),
        _ => left.checked_div(right),
    };
    value
        .map(Value::Number)
        .ok_or_else(|| format!("{left} {sign} {right} is no number"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holds(text: &str) -> Result<bool, String> {
        let look_up = |name: &str| match name {
            "Normal@1.free" => Some(Value::Number(12)),
            "reason" => Some(Value::Word("no-room".to_owned())),
            _ => None,
        };
        compare(text, &look_up).map(|compared| compared.holds)
    }

    #[test]
    fn sums_and_words_are_compared() {
        assert_eq!(holds("Normal@1.free == 2 + 5 * 2"), Ok(true));
        assert_eq!(holds("Normal@1.free - 13 < 0"), Ok(true));
        assert_eq!(holds("Normal@1.free * 4096 <= 48KiB"), Ok(true));
        assert_eq!(holds("reason == \"no-room\""), Ok(true));
        assert_eq!(holds("reason != \"<=\""), Ok(true));
        assert_eq!(holds("reason == 3"), Ok(false));
    }

    #[test]
    fn what_is_no_comparison_is_an_error() {
        for text in [
            "Normal@1.free",
            "reason < 3",
            "x == 1",
            "1 == 1 1",
            "1 / 0 == 1",
            "1 == \"a",
            "! == 1",
        ] {
            assert!(holds(text).is_err(), "{text}");
        }
    }
}
