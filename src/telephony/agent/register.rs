//! REGISTER (RFC 3261 section 10.2): one binding of this server at a registrar. When to register is decided in
//! `registrations`.

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rsipstack::sip::{Header, Method, Response, Uri};

use super::super::registrations::{Account, Outcome};
use super::client::{Caller, lock};
use super::dialog::Dialog;
use super::digest::{Authenticator, Credentials};
use super::header::{Address, encode_user};
use super::{Agent, Reached, random};

/// What the requests of one account have in common: all have one Call-ID and numbers that grow.
pub struct Binding {
    /// `None` where its address cannot be written as a URI.
    dialog: Option<Dialog>,
    credentials: Credentials,
}

impl Binding {
    /// The binding of an account.
    pub fn new(account: &Account) -> Self {
        let user = encode_user(&account.user);
        let domain = &account.domain;
        let domain = if domain.contains(':') && !domain.starts_with('[') {
            format!("[{domain}]")
        } else {
            domain.clone()
        };
        let record = format!("<sip:{user}@{domain}>");
        let call_id = format!("{:016x}{:016x}@vivavoce", random::u64(), random::u64());
        let target = Uri::try_from(format!("sip:{domain}")).ok();
        let dialog =
            target.map(|target| Dialog::outbound(call_id, &record, &record, target, &account.user));
        Self {
            dialog,
            credentials: account.credentials.clone(),
        }
    }
}

impl Agent {
    /// Registers a binding for so long, or removes it for none, and says what the registrar answered.
    pub async fn register(
        &self,
        reached: Reached,
        binding: &mut Binding,
        expires: Duration,
    ) -> Outcome {
        let Some(dialog) = binding.dialog.clone() else {
            return Outcome::Unreachable;
        };
        let caller = Caller {
            transports: Arc::clone(&self.transports),
            dialog: Mutex::new(dialog),
            authenticator: Mutex::new(Authenticator::new(Some(binding.credentials.clone()))),
            flow: Mutex::new(reached.flow),
            private: true,
            // The request goes to the registrar that was reached, whatever its domain is.
            proven: AtomicBool::new(false),
            reliable: super::leg::Reliable::default(),
        };
        let asked = vec![Header::Expires(expires.as_secs().to_string().into())];
        let response = caller.transact(Method::Register, asked, None).await;
        binding.dialog = Some(lock(&caller.dialog).clone());
        let own = lock(&caller.flow).told.to_string();
        response.map_or(Outcome::Unreachable, |response| {
            outcome(&response, &own, expires)
        })
    }
}

fn outcome(response: &Response, own: &str, expires: Duration) -> Outcome {
    let value = |name: &str| {
        let mut headers = response.headers.iter();
        let found = headers.find(|header| header.name().eq_ignore_ascii_case(name));
        found.and_then(|header| header.value().trim().parse().ok())
    };
    let seconds = |name: &str| value(name).map(Duration::from_secs);
    match response.status_code.code() {
        200..=299 => {
            // A registrar tells all bindings of the account; ours is the one of this address.
            let contacts = response.headers.iter().filter_map(|header| match header {
                Header::Contact(contact) => Some(contact.value()),
                _ => None,
            });
            let ours = contacts.flat_map(|value| value.split(',')).find_map(|one| {
                let one = Address::parse(one);
                let granted = one.parameter("expires")?.parse().ok()?;
                one.uri.contains(own).then(|| Duration::from_secs(granted))
            });
            Outcome::Registered(ours.or_else(|| seconds("expires")).unwrap_or(expires))
        }
        423 => Outcome::TooBrief(seconds("min-expires").unwrap_or_default()),
        // The stack answers itself where nobody else does, without a tag.
        408 | 503 if is_untagged(response) => Outcome::Unreachable,
        status => Outcome::Refused(status),
    }
}

pub(super) fn is_untagged(response: &Response) -> bool {
    let mut headers = response.headers.iter();
    let to = headers.find_map(|header| match header {
        Header::To(to) => Some(to.value()),
        _ => None,
    });
    to.is_none_or(|to| Address::parse(to).tag().is_none())
}
