//! Rust text with comments and literals blanked, so that a rule about code
//! does not stumble over prose.
//!
//! Not a parser: it knows where a comment, a string or a character begins and
//! ends, nothing else. Lines and columns stay where they were.

/// Replaces every character inside comments, strings and character literals
/// by a space, newlines excepted.
pub fn blank(text: &str) -> String {
    let chars: Vec<char> = text.chars().collect();
    let mut out = String::with_capacity(text.len());
    let mut at = 0;
    while at < chars.len() {
        let end = at + literal_len(&chars[at..], at.checked_sub(1).map(|before| chars[before]));
        if end == at {
            out.push(chars[at]);
            at += 1;
        } else {
            out.extend(
                chars[at..end]
                    .iter()
                    .map(|&c| if c == '\n' { '\n' } else { ' ' }),
            );
            at = end;
        }
    }
    out
}

/// The length of the comment or literal that starts here; 0 if none does.
fn literal_len(rest: &[char], before: Option<char>) -> usize {
    match rest {
        ['/', '/', ..] => rest.iter().position(|&c| c == '\n').unwrap_or(rest.len()),
        ['/', '*', ..] => block_comment_len(rest),
        ['"', ..] => quoted_len(rest, '"'),
        ['\'', '\\', ..] => quoted_len(rest, '\''),
        ['\'', _, '\'', ..] => 3,
        ['r', '"' | '#', ..] if !before.is_some_and(is_word) || before == Some('b') => {
            raw_string_len(rest)
        }
        _ => 0,
    }
}

/// Whether `c` may be part of a name.
pub fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

fn block_comment_len(rest: &[char]) -> usize {
    let (mut depth, mut at) = (0_u32, 0);
    while at < rest.len() {
        match &rest[at..] {
            ['/', '*', ..] => (depth, at) = (depth + 1, at + 2),
            ['*', '/', ..] if depth == 1 => return at + 2,
            ['*', '/', ..] => (depth, at) = (depth - 1, at + 2),
            _ => at += 1,
        }
    }
    rest.len()
}

fn quoted_len(rest: &[char], quote: char) -> usize {
    let mut at = 1;
    while at < rest.len() {
        match rest[at] {
            '\\' => at += 2,
            c if c == quote => return at + 1,
            _ => at += 1,
        }
    }
    rest.len()
}

/// `r"…"` and `r#"…"#`; 0 for a raw identifier such as `r#type`.
fn raw_string_len(rest: &[char]) -> usize {
    let hashes = rest[1..].iter().take_while(|&&c| c == '#').count();
    let open = 1 + hashes;
    if rest.get(open) != Some(&'"') {
        return 0;
    }
    let closes = |window: &[char]| window[0] == '"' && window[1..].iter().all(|&c| c == '#');
    rest[open + 1..]
        .windows(hashes + 1)
        .position(closes)
        .map_or(rest.len(), |found| open + 1 + found + hashes + 1)
}

/// Every place (line from 0) where `name` stands as a whole word in `code`.
pub fn lines_with_word<'a>(code: &'a str, name: &'a str) -> impl Iterator<Item = usize> + 'a {
    let has = move |line: &str| {
        line.match_indices(name).any(|(at, _)| {
            let before = line[..at].chars().next_back();
            let after = line[at + name.len()..].chars().next();
            !before.is_some_and(is_word) && !after.is_some_and(is_word)
        })
    };
    code.lines()
        .enumerate()
        .filter(move |(_, line)| has(line))
        .map(|(number, _)| number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_literals_go_and_code_stays() {
        let text = "let a = \"unsafe\"; // unsafe\nlet b = 'x'; /* a /* b */ unsafe */ unsafe {}";
        let code = blank(text);
        assert_eq!(code.matches("unsafe").count(), 1);
        assert_eq!(code.lines().count(), 2);
        assert_eq!(code.chars().count(), text.chars().count());
    }

    #[test]
    fn raw_strings_end_at_their_own_mark() {
        assert_eq!(blank("r#\"a \"b\" c\"# d").trim(), "d");
        assert_eq!(blank("br\"a\" d"), "b     d");
        assert_eq!(blank("r#type"), "r#type");
        assert_eq!(blank("for\"a\" d"), "for    d");
    }

    #[test]
    fn lifetimes_are_no_characters() {
        assert_eq!(blank("fn f<'a>(x: &'a str)"), "fn f<'a>(x: &'a str)");
        assert_eq!(blank("'\\'' x '\"' y"), "     x     y");
    }

    #[test]
    fn words_are_whole() {
        let found: Vec<usize> =
            lines_with_word("unsafe_code\nunsafe {\nan unsafe", "unsafe").collect();
        assert_eq!(found, [1, 2]);
    }
}
