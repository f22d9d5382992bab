//! The session token: 128 random bits that tie a gRPC call to an attached client.
//!
//! A secret, so it is compared in constant time and never printed. It proves nothing alone: the
//! daemon checks the peer's credentials beside it.

use nix::errno::Errno;

/// Bytes of a token.
pub const TOKEN_BYTES: usize = 16;

/// A session's secret.
#[derive(Clone, Copy)]
pub struct Token([u8; TOKEN_BYTES]);

impl Token {
    /// Draws a token from the system's random source.
    ///
    /// # Errors
    /// `ENOSYS` where there is no such source; a sandbox may also answer `EPERM`.
    pub fn random() -> Result<Token, Errno> {
        let mut bytes = [0_u8; TOKEN_BYTES];
        loop {
            // SAFETY: the pointer and the length name `bytes`, exclusively borrowed for the call.
            let answer = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) };
            match Errno::result(answer) {
                // A request of up to 256 bytes is never cut short once the source is up.
                Ok(got) if usize::try_from(got) == Ok(bytes.len()) => return Ok(Token(bytes)),
                Ok(_) | Err(Errno::EINTR) => {}
                Err(errno) => return Err(errno),
            }
        }
    }

    /// A token from its bytes, as they came over the attach socket.
    pub fn from_bytes(bytes: [u8; TOKEN_BYTES]) -> Token {
        Token(bytes)
    }

    /// The bytes, to be sent over the attach socket and nowhere else.
    pub fn to_bytes(self) -> [u8; TOKEN_BYTES] {
        self.0
    }

    /// The form in gRPC metadata: 32 lower-case hexadecimal digits.
    pub fn to_hex(self) -> String {
        self.0.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// Reads the form in gRPC metadata; `None` unless it is exactly 32 hexadecimal digits.
    pub fn from_hex(text: &str) -> Option<Token> {
        let (pairs, rest) = text.as_bytes().as_chunks::<2>();
        let pairs: &[[u8; 2]; TOKEN_BYTES] = pairs.try_into().ok()?;
        if !rest.is_empty() {
            return None;
        }
        let mut bytes = [0_u8; TOKEN_BYTES];
        for (byte, [high, low]) in bytes.iter_mut().zip(pairs) {
            *byte = digit(*high)? << 4 | digit(*low)?;
        }
        Some(Token(bytes))
    }
}

fn digit(character: u8) -> Option<u8> {
    char::from(character)
        .to_digit(16)
        .and_then(|digit| u8::try_from(digit).ok())
}

impl PartialEq for Token {
    /// Looks at every byte whatever the first ones say, so the time tells nothing about them.
    fn eq(&self, other: &Token) -> bool {
        let difference = self
            .0
            .iter()
            .zip(&other.0)
            .fold(0, |seen, (a, b)| std::hint::black_box(seen | (a ^ b)));
        difference == 0
    }
}

impl Eq for Token {}

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Token(secret)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_differ_and_survive_their_hex_form() {
        let (a, b) = (Token::random().unwrap(), Token::random().unwrap());
        assert_ne!(a, b);
        assert_eq!(Token::from_hex(&a.to_hex()), Some(a));
        assert_eq!(Token::from_hex(&a.to_hex().to_uppercase()), Some(a));
    }

    #[test]
    fn every_byte_counts() {
        let token = Token::from_bytes([7; TOKEN_BYTES]);
        for index in 0..TOKEN_BYTES {
            let mut bytes = token.to_bytes();
            bytes[index] ^= 0x80;
            assert_ne!(Token::from_bytes(bytes), token, "byte {index}");
        }
    }

    #[test]
    fn what_is_no_token_is_none() {
        let hex = Token::from_bytes([0xab; TOKEN_BYTES]).to_hex();
        for length in 0..hex.len() {
            assert_eq!(Token::from_hex(&hex[..length]), None, "{length} digits");
        }
        assert_eq!(Token::from_hex(&format!("{hex}0")), None);
        assert_eq!(Token::from_hex(&format!("{hex}00")), None);
        assert_eq!(Token::from_hex(&hex.replace('a', "g")), None);
        assert_eq!(Token::from_hex(&hex.replace("ab", "é")), None);
    }

    #[test]
    fn it_is_not_printed() {
        let token = Token::from_bytes([0xab; TOKEN_BYTES]);
        assert!(!format!("{token:?}").contains("ab"));
    }
}
