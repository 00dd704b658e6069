//! Shared secrets, compared by their digests in constant time, so that response times reveal neither their length nor
//! how much of a guess was right.

use std::fmt;

use subtle::{ConditionallySelectable, ConstantTimeEq};

use super::token::{Holder, Token};

/// A digest in machine words: a constant-time comparison byte by byte would cost many times as much.
type Words = [u64; 4];

fn words(digest: [u8; 32]) -> Words {
    let (words, _) = digest.as_chunks();
    std::array::from_fn(|index| u64::from_ne_bytes(words[index]))
}

struct Known {
    digest: Words,
    holder: Holder,
}

/// The shared secrets.
#[derive(Default)]
pub(super) struct Secrets(Vec<Known>);

impl Secrets {
    /// Adds a secret. Returns `false` if it is known already, because its owner would be ambiguous.
    pub(super) fn add(&mut self, secret: &Token, holder: Holder) -> bool {
        let digest = words(secret.digest());
        if self.0.iter().any(|known| known.digest == digest) {
            return false;
        }
        self.0.push(Known { digest, holder });
        true
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The holder of a token that is one of the secrets.
    pub(super) fn find(&self, token: &Token) -> Option<Holder> {
        let digest = words(token.digest());
        let mut found = 0_u32;
        for (number, known) in (1..).zip(&self.0) {
            found.conditional_assign(&number, known.digest.ct_eq(&digest));
        }
        let known = self.0.get(found.checked_sub(1)? as usize)?;
        Some(known.holder.clone())
    }
}

impl fmt::Debug for Secrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} secrets", self.0.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vivavoce_core::party::TenantId;

    fn token(text: &str) -> Token {
        Token::new(text).unwrap()
    }

    #[test]
    fn a_secret_opens_only_as_a_whole() {
        let mut secrets = Secrets::default();
        assert!(secrets.add(&token("house"), Holder::of(None)));
        let tenant = TenantId::new("a").unwrap();
        assert!(secrets.add(&token("of-a"), Holder::of(Some(tenant.clone()))));
        assert!(
            !secrets.add(&token("of-a"), Holder::of(None)),
            "one secret, two owners"
        );
        assert_eq!(secrets.find(&token("house")), Some(Holder::of(None)));
        assert_eq!(secrets.find(&token("of-a")), Some(Holder::of(Some(tenant))));
        for wrong in ["hous", "houses", "House", "of-b", "a"] {
            assert_eq!(secrets.find(&token(wrong)), None, "{wrong}");
        }
        assert_eq!(Secrets::default().find(&token("house")), None);
    }
}
