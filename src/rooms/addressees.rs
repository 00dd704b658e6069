//! Whom a datagram is for. One thread reads the media port; what belongs to a participant on another one it passes on.
//!
//! A STUN request names whom it is for, by the ICE user fragment that the client was told (RFC 8445 section 7.2.2). Anything else is
//! for whoever is known by its source address, once a request from there was accepted. What is found by neither is nobody's, and
//! costs no more than the look.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use str0m::net::Protocol;

use super::ParticipantKey;
use super::participant::Side;

/// Where datagrams come from.
pub(super) type Source = (Protocol, SocketAddr);

/// A peer connection, and the number of the thread that it is on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Addressee {
    pub thread: usize,
    pub key: ParticipantKey,
    pub side: Side,
}

/// The peer connections of all threads, by name and by address.
#[derive(Debug, Default)]
pub(super) struct Addressees(Mutex<Known>);

#[derive(Debug, Default)]
struct Known {
    names: HashMap<String, Addressee>,
    sources: HashMap<Source, usize>,
}

impl Addressees {
    fn known(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whose client was told this user fragment.
    pub fn named(&self, ufrag: &str) -> Option<Addressee> {
        self.known().names.get(ufrag).copied()
    }

    /// The thread that a datagram is for.
    pub fn thread_of(&self, source: Source, datagram: &[u8]) -> Option<usize> {
        match stun_ufrag(datagram) {
            Some(ufrag) => self.named(ufrag).map(|addressee| addressee.thread),
            None => self.known().sources.get(&source).copied(),
        }
    }

    /// What comes from here is for this thread.
    pub fn learn(&self, source: Source, thread: usize) {
        self.known().sources.insert(source, thread);
    }

    /// What comes from here is for nobody on this thread any more.
    pub fn forget(&self, sources: impl IntoIterator<Item = Source>, thread: usize) {
        let mut known = self.known();
        for source in sources {
            if known.sources.get(&source) == Some(&thread) {
                known.sources.remove(&source);
            }
        }
    }

    #[cfg(test)]
    pub fn is_empty(&self) -> bool {
        let known = self.known();
        known.names.is_empty() && known.sources.is_empty()
    }
}

/// The ICE user fragments that the client of a peer connection was told, newest first: during an ICE restart the former one is still
/// in use.
#[derive(Debug)]
pub(super) struct Names {
    told: [String; 2],
    of: Addressee,
    all: Arc<Addressees>,
}

impl Names {
    pub fn new(all: &Arc<Addressees>, of: Addressee) -> Self {
        Self {
            told: Default::default(),
            of,
            all: Arc::clone(all),
        }
    }

    /// The client was told this one.
    pub fn tell(&mut self, ufrag: &str) {
        if self.told[0] == ufrag {
            return;
        }
        self.told.rotate_right(1);
        let former = std::mem::replace(&mut self.told[0], ufrag.to_owned());
        let mut known = self.all.known();
        known.names.remove(&former);
        known.names.insert(ufrag.to_owned(), self.of);
    }

    /// The peer connection goes to another thread.
    pub fn go_to(&mut self, thread: usize) {
        self.of.thread = thread;
        let mut known = self.all.known();
        for told in &self.told {
            if let Some(of) = known.names.get_mut(told) {
                *of = self.of;
            }
        }
    }
}

impl Drop for Names {
    fn drop(&mut self) {
        let mut known = self.all.known();
        for told in &self.told {
            known.names.remove(told);
        }
    }
}

/// The user fragment in a STUN request: the user name up to the colon (RFC 8445 section 7.2.2).
pub(super) fn stun_ufrag(datagram: &[u8]) -> Option<&str> {
    const HEADER: usize = 20;
    const USERNAME: u16 = 6;
    // STUN begins with 0 to 3 (RFC 7983).
    if datagram.first().is_none_or(|first| *first > 3) {
        return None;
    }
    let mut rest = datagram.get(HEADER..)?;
    loop {
        let (head, after) = rest.split_first_chunk::<4>()?;
        let [kind_high, kind_low, high, low] = *head;
        let length = usize::from(u16::from_be_bytes([high, low]));
        let value = after.get(..length)?;
        if u16::from_be_bytes([kind_high, kind_low]) == USERNAME {
            return std::str::from_utf8(value).ok()?.split(':').next();
        }
        rest = after.get(length.next_multiple_of(4)..)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(attributes: &[(u16, &[u8])]) -> Vec<u8> {
        let mut bytes = vec![0; 20];
        for (kind, value) in attributes {
            bytes.extend(kind.to_be_bytes());
            bytes.extend((value.len() as u16).to_be_bytes());
            bytes.extend(*value);
            bytes.resize(bytes.len().next_multiple_of(4), 0);
        }
        bytes
    }

    #[test]
    fn who_is_meant_is_found_behind_other_attributes_and_nobody_in_what_is_broken() {
        let meant = request(&[(0x24, &[1, 2, 3, 4]), (0x8022, b"abc"), (6, b"here:there")]);
        assert_eq!(stun_ufrag(&meant), Some("here"));
        let without_padding = meant.len() - 2;
        for length in 0..without_padding {
            assert_eq!(stun_ufrag(&meant[..length]), None, "{length}");
        }
        assert_eq!(stun_ufrag(&request(&[(6, b"\xff:x")])), None);
        assert_eq!(stun_ufrag(&request(&[(0x24, &[0; 4])])), None);
    }

    #[test]
    fn a_request_is_for_whom_it_names_and_the_rest_for_whom_its_source_was_accepted() {
        let all = Arc::<Addressees>::default();
        let source = (Protocol::Udp, SocketAddr::from(([192, 0, 2, 1], 1)));
        let other = (Protocol::Tcp, source.1);
        let (asked, media) = (request(&[(6, b"here:there")]), [0x80; 12]);
        assert_eq!(all.thread_of(source, &asked), None);
        let ann = Addressee {
            thread: 1,
            key: ParticipantKey(7),
            side: Side::Publisher,
        };
        let mut names = Names::new(&all, ann);
        names.tell("here");
        assert_eq!(all.named("here"), Some(ann));
        assert_eq!(all.thread_of(source, &asked), Some(1));
        assert_eq!(all.thread_of(source, &media), None);
        all.learn(source, 1);
        assert_eq!(all.thread_of(source, &media), Some(1));
        assert_eq!(all.thread_of(other, &media), None);

        // After a restart of ICE both names are in use, after another one the first no longer.
        names.tell("again");
        assert_eq!(
            (all.named("here"), all.named("again")),
            (Some(ann), Some(ann))
        );
        names.tell("anew");
        assert_eq!(all.thread_of(source, &asked), None);

        names.go_to(2);
        let anew = request(&[(6, b"anew:there")]);
        assert_eq!(all.thread_of(other, &anew), Some(2));
        // Another thread has it by now.
        all.learn(source, 2);
        all.forget([source], 1);
        assert_eq!(all.thread_of(source, &media), Some(2));
        all.forget([source], 2);
        drop(names);
        assert!(all.is_empty());
    }
}
