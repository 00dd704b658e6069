//! A dialog (RFC 3261 section 12): the identifiers, route set and sequence numbers of the requests within a call, learned
//! from the INVITE and its response.

use std::collections::VecDeque;

use rsipstack::sip::prelude::HeadersExt;
use rsipstack::sip::{Header, Method, Request, Response, Uri, Version};

use super::flow::Flow;
use super::header::{Address, decode, encode_user};

/// Value of `User-Agent` and `Server`.
pub(super) const PRODUCT: &str = concat!("vivavoce/", env!("CARGO_PKG_VERSION"));
/// Value of `Allow`: what is carried out.
pub const ALLOW: &str = "INVITE, ACK, CANCEL, BYE, OPTIONS, PRACK, UPDATE, INFO, NOTIFY";
/// The same where REFER is taken.
const ALLOW_REFER: &str = "INVITE, ACK, CANCEL, BYE, OPTIONS, PRACK, UPDATE, INFO, NOTIFY, REFER";
/// Value of `Supported`, and the same where calls may take the place of others.
const SUPPORTED: &str = "100rel";
const SUPPORTED_REPLACES: &str = "100rel, replaces";
const SDP: &str = "application/sdp";
const MAX_FORWARDS: u8 = 70;
/// CSeqs of earlier REFERs that are remembered.
const MOST_REFERS: usize = 32;

/// One side's view of a dialog.
#[derive(Debug, Clone)]
pub(super) struct Dialog {
    pub call_id: String,
    /// `From` of our requests, with our tag.
    local: String,
    pub local_tag: String,
    /// `To` of our requests, with the remote tag once it is known.
    remote: String,
    pub remote_tag: Option<String>,
    /// The remote target.
    target: Uri,
    /// The route set, nearest first.
    routes: Vec<String>,
    cseq: u32,
    remote_cseq: Option<u32>,
    /// Whether an offer of ours is pending (RFC 3264 section 4).
    pub offering: bool,
    /// The CSeqs of the last REFER (several if it was challenged), and of earlier ones.
    refers: Vec<u32>,
    refers_before: VecDeque<u32>,
    /// The user of our `Contact`.
    user: String,
    /// Whether REFER is taken.
    pub takes_refer: bool,
    /// Whether calls may take the place of others.
    pub takes_replaces: bool,
}

impl Dialog {
    /// For an outbound call. `from` and `to` are header values without tags.
    pub fn outbound(call_id: String, from: &str, to: &str, target: Uri, user: &str) -> Self {
        let local_tag = tag();
        Self {
            local: format!("{from};tag={local_tag}"),
            local_tag,
            remote: to.to_owned(),
            remote_tag: None,
            target,
            routes: Vec::new(),
            // Not 1: a call that is repeated after a restart must not look like the one before.
            cseq: 1 + crate::random::u32() % 9_999,
            remote_cseq: None,
            offering: true,
            refers: Vec::new(),
            refers_before: VecDeque::new(),
            user: encode_user(user),
            takes_refer: false,
            takes_replaces: false,
            call_id,
        }
    }

    /// Requests go by this route until the other side names its own.
    pub fn route_by(&mut self, route: String) {
        self.routes = vec![route];
    }

    /// The acknowledgement of a reliable provisional response (RFC 3262 section 7.2), in the early dialog that the response makes.
    pub fn prack(&mut self, response: &Response, flow: &Flow, more: Vec<Header>) -> Request {
        let mut early = self.clone();
        early.answered(response);
        let request = early.request(Method::PRack, flow, more, None);
        self.cseq = early.cseq;
        request
    }

    /// For an inbound call. `None` if the INVITE lacks what a dialog needs.
    pub fn inbound(invite: &Request) -> Option<Self> {
        let from = invite.from_header().ok()?.value();
        let to = invite.to_header().ok()?.value();
        let contact = invite.contact_header().ok()?.value();
        let local_tag = tag();
        let user = Address::parse(to).user().unwrap_or_default().into_owned();
        Some(Self {
            call_id: invite.call_id_header().ok()?.value().to_owned(),
            local: format!("{to};tag={local_tag}"),
            local_tag,
            remote: from.to_owned(),
            remote_tag: Address::parse(from).tag().map(str::to_owned),
            target: target(contact)?,
            routes: record_route(invite.record_route_headers().iter().map(|one| one.value())),
            cseq: 1 + crate::random::u32() % 9_999,
            remote_cseq: invite.cseq_header().ok()?.seq().ok(),
            offering: false,
            refers: Vec::new(),
            refers_before: VecDeque::new(),
            user: encode_user(&user),
            takes_refer: false,
            takes_replaces: false,
        })
    }

    /// Updates the dialog from a response that establishes it.
    pub fn answered(&mut self, response: &Response) {
        self.offering = false;
        if let Ok(to) = response.to_header() {
            to.value().clone_into(&mut self.remote);
            let tag = Address::parse(to.value()).tag().map(str::to_owned);
            if std::mem::replace(&mut self.remote_tag, tag.clone()) != tag {
                // The sequence numbers of another fork say nothing about this one's.
                self.remote_cseq = None;
            }
        }
        self.retarget(response);
        let mut routes = record_route(
            response
                .record_route_headers()
                .iter()
                .map(|one| one.value()),
        );
        routes.reverse();
        self.routes = routes;
    }

    /// A target refresh: `Contact` may change with each response and each re-INVITE (RFC 3261 section 12.2).
    pub fn retarget(&mut self, message: &impl HeadersExt) {
        let contact = message.contact_header().ok();
        if let Some(target) = contact.and_then(|contact| target(contact.value())) {
            self.target = target;
        }
    }

    /// Whether a request comes from the other side of this dialog, and not from another fork of our INVITE. Before a 2xx
    /// response that is unknown.
    pub fn is_theirs(&self, request: &Request) -> bool {
        let from = request.from_header().ok();
        let from = from.map(|from| Address::parse(from.value()).tag().map(str::to_owned));
        self.remote_tag.is_none() || from == Some(self.remote_tag.clone())
    }

    /// Whether a request is in order (RFC 3261 section 12.2.2); if so, it is the newest.
    pub fn in_order(&mut self, request: &Request) -> bool {
        let Some(number) = request.cseq_header().ok().and_then(|cseq| cseq.seq().ok()) else {
            return false;
        };
        if self.remote_cseq.is_some_and(|newest| number < newest) {
            return false;
        }
        self.remote_cseq = Some(number);
        true
    }

    /// The next hop: the first route, or the remote target.
    pub fn next_hop(&self) -> Uri {
        let route = self.routes.first();
        let route = route.and_then(|route| Uri::try_from(Address::parse(route).uri).ok());
        route.unwrap_or_else(|| self.target.clone())
    }

    /// The Request-URI.
    pub fn target(&self) -> String {
        self.target.to_string()
    }

    /// Begins a new transfer: the next REFER is not a repetition.
    pub fn begin_transfer(&mut self) {
        self.refers_before.extend(self.refers.drain(..));
        let old = self.refers_before.len().saturating_sub(MOST_REFERS);
        self.refers_before.drain(..old);
    }

    /// Whether a REFER with this CSeq belongs to a transfer before the last.
    pub fn is_old_refer(&self, cseq: u32) -> bool {
        self.refers_before.contains(&cseq)
    }

    /// A new request.
    pub fn request(
        &mut self,
        method: Method,
        flow: &Flow,
        more: Vec<Header>,
        body: Option<Body>,
    ) -> Request {
        self.cseq = self.cseq.wrapping_add(1);
        if matches!(method, Method::Refer) {
            self.refers.push(self.cseq);
        }
        self.write(method, self.cseq, flow, more, body)
    }

    fn write(
        &self,
        method: Method,
        number: u32,
        flow: &Flow,
        more: Vec<Header>,
        body: Option<Body>,
    ) -> Request {
        let mut headers = vec![
            Header::Via(flow.via(&flow.branch()).into()),
            Header::MaxForwards(u32::from(MAX_FORWARDS).into()),
            Header::From(self.local.clone().into()),
            Header::To(self.remote.clone().into()),
            Header::CallId(self.call_id.clone().into()),
            Header::CSeq(format!("{number} {method}").into()),
        ];
        headers.extend(
            self.routes
                .iter()
                .map(|route| Header::Route(route.clone().into())),
        );
        if !matches!(method, Method::Bye | Method::Ack) {
            headers.push(Header::Contact(flow.contact(&self.user).into()));
        }
        headers.push(Header::UserAgent(PRODUCT.into()));
        if matches!(method, Method::Invite) {
            headers.push(Header::Allow(self.allow().into()));
            headers.push(Header::Supported(self.supported().into()));
        }
        headers.extend(more);
        let body = body.map(|body| {
            headers.push(Header::ContentType(body.kind.into()));
            body.bytes
        });
        let body = body.unwrap_or_default();
        headers.push(Header::ContentLength((body.len() as u32).into()));
        Request {
            method,
            uri: self.target.clone(),
            version: Version::V2,
            headers: headers.into(),
            body,
        }
    }

    const fn supported(&self) -> &'static str {
        if self.takes_replaces {
            SUPPORTED_REPLACES
        } else {
            SUPPORTED
        }
    }

    const fn allow(&self) -> &'static str {
        if self.takes_refer { ALLOW_REFER } else { ALLOW }
    }

    /// Headers of a response that establishes or keeps the dialog.
    pub fn answer_headers(&self, flow: &Flow) -> Vec<Header> {
        vec![
            Header::Contact(flow.contact(&self.user).into()),
            Header::Allow(self.allow().into()),
            Header::Supported(self.supported().into()),
        ]
    }
}

/// A body with its content type.
#[derive(Debug, Clone)]
pub(super) struct Body {
    pub kind: &'static str,
    pub bytes: Vec<u8>,
}

impl Body {
    pub fn sdp(text: String) -> Self {
        Self {
            kind: SDP,
            bytes: text.into_bytes(),
        }
    }
}

/// The ACK of a 2xx response: a request of the dialog with the CSeq number and the credentials of the INVITE (RFC 3261
/// section 13.2.2.4).
pub(super) fn ack(dialog: &Dialog, invite: &Request, flow: &Flow) -> Request {
    let kept = |header: &&Header| {
        matches!(
            header,
            Header::Authorization(_) | Header::ProxyAuthorization(_)
        )
    };
    let kept = invite.headers.iter().filter(kept).cloned().collect();
    let number = invite.cseq_header().ok().and_then(|cseq| cseq.seq().ok());
    dialog.write(Method::Ack, number.unwrap_or(1), flow, kept, None)
}

/// The CANCEL of a request, in the same transaction (RFC 3261 section 9.1).
pub(super) fn cancel(invite: &Request) -> Request {
    let kept = |header: &&Header| {
        matches!(
            header,
            Header::MaxForwards(_)
                | Header::From(_)
                | Header::To(_)
                | Header::CallId(_)
                | Header::Route(_)
        )
    };
    let via = invite
        .headers
        .iter()
        .find(|one| matches!(one, Header::Via(_)));
    let mut headers: Vec<Header> = via.cloned().into_iter().collect();
    headers.extend(invite.headers.iter().filter(kept).cloned());
    let number = invite.cseq_header().ok().and_then(|cseq| cseq.seq().ok());
    headers.push(Header::CSeq(
        format!("{} CANCEL", number.unwrap_or(1)).into(),
    ));
    headers.push(Header::UserAgent(PRODUCT.into()));
    headers.push(Header::ContentLength(0u32.into()));
    Request {
        method: Method::Cancel,
        uri: invite.uri.clone(),
        version: Version::V2,
        headers: headers.into(),
        body: Vec::new(),
    }
}

/// The session description in a message; in a multipart body (RFC 5621), the part that is one.
pub(super) fn sdp(message: &impl HeadersExt, body: &[u8]) -> Option<String> {
    let text = std::str::from_utf8(body).ok()?;
    if text.trim().is_empty() {
        return None;
    }
    let kind = message.headers().iter().find_map(|header| match header {
        Header::ContentType(kind) => Some(kind.value().to_ascii_lowercase()),
        _ => None,
    })?;
    if kind.starts_with(SDP) {
        return Some(text.to_owned());
    }
    if kind.starts_with("multipart/") {
        let part = text.to_ascii_lowercase().find(SDP)?;
        let begin = text.get(part..)?.find("\r\n\r\n")? + part + 4;
        let rest = text.get(begin..)?;
        let end = rest.find("\r\n--").unwrap_or(rest.len());
        return rest.get(..end).map(|part| format!("{part}\r\n"));
    }
    None
}

fn tag() -> String {
    format!("{:016x}", crate::random::u64())
}

/// The URI of a `Contact`. The stack encodes its user when writing it, so it is decoded here.
fn target(contact: &str) -> Option<Uri> {
    let mut uri = Uri::try_from(Address::parse(contact).uri).ok()?;
    if let Some(auth) = &mut uri.auth {
        auth.user = decode(&auth.user).into_owned();
    }
    Some(uri)
}

fn record_route<'a>(values: impl Iterator<Item = &'a str>) -> Vec<String> {
    values.flat_map(split_list).collect()
}

/// Splits a list of addresses at commas outside brackets and quotes.
pub(super) fn split_list(value: &str) -> Vec<String> {
    let mut members = Vec::new();
    let (mut quoted, mut bracketed, mut from) = (false, false, 0);
    for (at, c) in value.char_indices() {
        match c {
            '"' => quoted = !quoted,
            '<' if !quoted => bracketed = true,
            '>' if !quoted => bracketed = false,
            ',' if !quoted && !bracketed => {
                members.extend(value.get(from..at));
                from = at + 1;
            }
            _ => {}
        }
    }
    members.extend(value.get(from..));
    members
        .into_iter()
        .map(|member| member.trim().to_owned())
        .filter(|member| !member.is_empty())
        .collect()
}
