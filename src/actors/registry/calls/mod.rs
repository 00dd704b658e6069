//! Calls, for the HTTP handlers and the sessions: who may call whom into which room, transfers and hang-ups. The registry
//! decides and instructs the telephone; the telephone's events go into the [ledger](Ledger) and are reported by webhooks
//! (protocol, sections 4 and 7).

mod destinations;
mod gateways;
mod ledger;
mod news;
pub mod queues;
mod uris;
pub mod warm;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use actix::prelude::*;
use livekit_protocol::ParticipantInfo;
use percent_encoding::percent_decode_str;
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep, timeout};

use self::queues::Queues;
use self::queues::table::NoPlace;
use self::warm::Transfers;
use self::warm::machine::{Refusal, Rules};
use super::rooms::{Owner, Rooms, RoomsError};
pub use destinations::{Destinations, NotAllowed};
pub use gateways::Gateways;
pub use ledger::{CallInfo, CallMedia, Ledger};
pub use news::News;
pub use uris::{NoSipUri, PATTERN as SIP_URI_PATTERN, SipUri};
use vivavoce_auth::Access;
use vivavoce_config::{MediaEncryption, Sip, SipTransport};
use vivavoce_core::phone::{Gateway, PhoneNumber};
use vivavoce_hooks::TenantNumbers;
use vivavoce_hooks::announcement::is_by_carrier;
use vivavoce_quotas::{Party, Quota, Refused};
use vivavoce_seams::rooms::telephone::{
    CallError, CallErrorKind, CallOf, CallTrace, Callee, CallerIdentity, Classify, GatewayReport,
    HangupCause, Line, Login, NewCall, NewTransfer, PhoneReport, PlacedCall, RefusedCall,
    RegistrationReport, Telephone, TransferTarget, Trunk, is_on_the_phone,
};
use vivavoce_webhooks::{Event, EventKind, TransferOutcome, Webhooks};

/// How long a transfer that nobody has refused is waited for.
const REFUSAL_PATIENCE: Duration = Duration::from_secs(5);
/// How much longer than it may ring an answer is waited for.
const RINGING_SLACK: Duration = Duration::from_secs(5);

/// Why a request about a call failed.
#[derive(Debug, thiserror::Error)]
pub enum CallsError {
    /// The room, or its provider.
    #[error(transparent)]
    Rooms(#[from] RoomsError),
    /// The rooms have no telephone.
    #[error("{0}: its rooms have no telephone")]
    NoTelephone(&'static str),
    /// There is no gateway.
    #[error(
        "neither sip.outbound_address of the request nor that of the server says where calls go"
    )]
    NoAddress,
    /// The number may not be called.
    #[error("{field}: {reason}")]
    NotAllowed {
        field: &'static str,
        /// Why.
        reason: NotAllowed,
    },
    /// The host may not be called.
    #[error("{field}: sip.allowed_hosts does not allow this host")]
    HostNotAllowed { field: &'static str },
    /// The caller ID is a number that `sip.tenant_numbers` gives to another tenant.
    #[error("from_phone_number: is not a number of this tenant")]
    OthersNumber,
    /// Its media must be encrypted and might not be.
    #[error("media_encryption: cannot be required unless sip.media_encryption is require")]
    Unencrypted,
    /// Who answers cannot be found out.
    #[error("classify: only calls of the server's own telephone are classified, and this is {0}'s")]
    NotClassified(&'static str),
    /// There are too many.
    #[error(transparent)]
    Quota(#[from] Refused),
    /// It could not be placed, transferred or ended.
    #[error(transparent)]
    Call(#[from] CallError),
    /// It comes by a carrier's socket, which cannot do that.
    #[error("this carrier's socket can neither transfer a call nor hold it")]
    ByCarrier,
    /// Nothing says whose number is to be shown.
    #[error(
        "from_phone_number: is required, because the call does not say which number of ours it is on"
    )]
    NoCallerId,
    /// There is no such warm transfer.
    #[error("transfer_id: there is no such transfer")]
    NoTransfer,
    /// A warm transfer cannot be completed or cancelled now.
    #[error(transparent)]
    Transfer(#[from] Refusal),
    /// The name of a queue has other characters than it may.
    #[error(
        "queue_name: must be 1 to 64 characters of A-Z a-z 0-9 . _ -, beginning with a letter or digit"
    )]
    QueueName,
    /// There is no room in the queue.
    #[error(transparent)]
    QueueFull(NoPlace),
    /// Nobody waits.
    #[error("queue_name: nobody waits in this queue")]
    EmptyQueue,
    /// The call does not wait there.
    #[error("sip_call_id: this call does not wait in this queue")]
    NoQueuedCall,
    /// Whoever waits has hung up.
    #[error("the caller has hung up")]
    CallerGone,
    /// It was not answered.
    #[error("the call was not answered: {}", .0.as_str())]
    Unanswered(HangupCause),
}

/// Where a request wants its call to go.
#[derive(Debug, Clone, Default)]
pub struct OwnGateway {
    /// Where; the configured gateway when absent.
    pub address: Option<Gateway>,
    /// Who the caller is there.
    pub login: Option<Login>,
}

/// Places a call from a room to a number.
#[derive(Debug, Message)]
#[rtype(result = "Result<PlacedCall, CallsError>")]
pub struct PlaceCall {
    pub access: Access,
    /// The room; it is made where there is none.
    pub room: String,
    /// Who it will be there.
    pub identity: String,
    /// What people read.
    pub name: String,
    /// Whose number is shown.
    pub from: PhoneNumber,
    /// What is shown beside it.
    pub display_name: Option<String>,
    /// Whether the called side is not to see it.
    pub hides_caller: bool,
    /// Whom to call.
    pub to: Target,
    /// Where to.
    pub gateway: OwnGateway,
    /// Whether it is listened to who answers.
    pub classify: Option<Classify>,
}

/// This was understood of what the telephone of a call has said, which may tell who has answered.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct HearWords {
    pub call: CallOf,
    pub text: String,
}

/// Whom a request wants to call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// A number.
    Number(PhoneNumber),
    /// A SIP URI.
    Uri(SipUri),
}

/// Calls a number through a trunk of the caller's, who owns all rooms.
#[derive(Debug, Message)]
#[rtype(result = "Result<PlacedCall, CallsError>")]
pub struct DialTrunk {
    /// The call. Whether its trunk may be private is decided here.
    pub call: NewCall,
    /// Whether it must not be placed unless its audio is encrypted.
    pub encrypted: bool,
    /// Whether it is waited for until somebody has picked up.
    pub until_answered: bool,
}

/// Transfers a call to another number.
#[derive(Debug, Message)]
#[rtype(result = "Result<(), CallsError>")]
pub struct TransferCall {
    pub access: Access,
    pub room: String,
    pub identity: String,
    /// Where to.
    pub to: TransferTarget,
    /// How long it may ring there; `None` is what the settings say.
    pub ringing_timeout: Option<Duration>,
    /// Until when it is waited for.
    pub until: Until,
}

/// Until when a transfer is waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Until {
    /// The other side has taken the wish, or has not refused it for five seconds.
    Accepted,
    /// It is moved.
    Done,
}

/// Hangs up a call.
#[derive(Debug, Message)]
#[rtype(result = "Result<(), CallsError>")]
pub struct HangUp {
    pub access: Access,
    pub room: String,
    pub identity: String,
}

/// Lists the calls that a caller may see, oldest first.
#[derive(Debug, Message)]
#[rtype(result = "Vec<CallInfo>")]
pub struct ListCalls {
    pub access: Access,
}

/// The inbound calls that were refused lately; only the operator sees them.
#[derive(Debug, Message)]
#[rtype(result = "Vec<RefusedCall>")]
pub struct ListRefused {
    pub access: Access,
}

/// What was seen of the signalling of calls, of a caller's own, the newest last; without messages.
#[derive(Debug, Message)]
#[rtype(result = "Vec<CallTrace>")]
pub struct ListTraces {
    pub access: Access,
}

/// The trace of this id, if the caller may see it.
#[derive(Debug, Message)]
#[rtype(result = "Option<CallTrace>")]
pub struct GetTrace {
    pub access: Access,
    pub id: String,
}

/// How gateways are and which telephones are registered here; a tenant sees its telephones.
#[derive(Debug, Message)]
#[rtype(result = "(Vec<GatewayReport>, Vec<PhoneReport>)")]
pub struct ListGateways {
    pub access: Access,
}

/// The accounts at PBXs and carriers that this server keeps registered; only the operator sees them.
#[derive(Debug, Message)]
#[rtype(result = "Vec<RegistrationReport>")]
pub struct ListRegistrations {
    pub access: Access,
}

/// The settings for calls.
#[derive(Debug, Clone)]
pub struct CallRules {
    gateways: Gateways,
    transport: SipTransport,
    allow_private: bool,
    /// Whether all calls must be encrypted.
    encrypts: bool,
    destinations: Destinations,
    /// Hosts that may be called.
    hosts: Vec<String>,
    numbers: TenantNumbers,
    ringing_timeout: Duration,
    max_duration: Duration,
    /// What bounds warm transfers.
    transfers: Rules,
    /// What bounds queues.
    queues: queues::Rules,
}

impl CallRules {
    /// From the settings of the server.
    pub fn new(settings: &Sip) -> Self {
        Self {
            // The server does not start with a setting that cannot be read.
            gateways: Gateways::read(settings).unwrap_or_default(),
            transport: settings.outbound_transport,
            allow_private: settings.allow_private_outbound,
            encrypts: settings.media_encryption == MediaEncryption::Require,
            destinations: Destinations::read(settings).unwrap_or_default(),
            hosts: settings.allowed_hosts.0.clone(),
            numbers: TenantNumbers::read(settings.tenant_numbers.as_ref()).unwrap_or_default(),
            ringing_timeout: settings.ringing_timeout_seconds,
            max_duration: settings.max_call_seconds,
            transfers: Rules::from(settings),
            queues: queues::Rules::from(settings),
        }
    }

    /// Where a request's call goes, and as whom, with what is tried if that fails: the server's credential is used at its own
    /// gateways only, and no request gets a part of it.
    fn trunks(&self, own: OwnGateway, to: &PhoneNumber) -> Result<(Trunk, Vec<Trunk>), CallsError> {
        let Some(gateway) = own.address else {
            let mut trunks = self.gateways.of(to, fastrand::f64).into_iter();
            let mut first = trunks.next().ok_or(CallsError::NoAddress)?;
            if own.login.is_some() {
                first.login = own.login;
                return Ok((first, Vec::new()));
            }
            return Ok((first, trunks.collect()));
        };
        let configured = self.gateways.at(&gateway);
        let servers = configured.and_then(|trunk| trunk.login.clone());
        let trunk = Trunk {
            gateway,
            transport: configured.map_or(self.transport, |trunk| trunk.transport),
            login: own.login.or(servers),
            private: configured.is_some() || self.allow_private,
            from_domain: configured.and_then(|trunk| trunk.from_domain.clone()),
            headers: configured.map_or_else(Vec::new, |trunk| trunk.headers.clone()),
            via: configured.and_then(|trunk| trunk.via.clone()),
            identity: configured.map_or(CallerIdentity::Untold, |trunk| trunk.identity),
        };
        Ok((trunk, Vec::new()))
    }

    /// The gateways of the settings.
    pub fn gateways(&self) -> Vec<Trunk> {
        self.gateways.all()
    }

    /// Where a SIP URI is called: at a gateway of the settings, or at a host that they allow.
    fn at_host(
        &self,
        uri: &SipUri,
        login: Option<Login>,
        field: &'static str,
    ) -> Result<Trunk, CallsError> {
        if let Ok(number) = PhoneNumber::parse(&uri.user) {
            self.check(&number, field)?;
        }
        let Some(host) = &uri.host else {
            // Its telephone says where.
            return Ok(Trunk {
                gateway: Gateway {
                    host: "invalid".to_owned(),
                    port: None,
                },
                transport: self.transport,
                login: None,
                private: true,
                from_domain: None,
                headers: Vec::new(),
                via: None,
                identity: CallerIdentity::Untold,
            });
        };
        if let Some(configured) = self.gateways.at(host) {
            let own = configured.clone();
            return Ok(Trunk {
                login: login.or(own.login),
                ..own
            });
        }
        if !uris::is_among(&host.host, &self.hosts) {
            return Err(CallsError::HostNotAllowed { field });
        }
        Ok(Trunk {
            gateway: host.clone(),
            transport: uri.transport.unwrap_or(self.transport),
            login,
            private: self.allow_private,
            from_domain: None,
            headers: Vec::new(),
            via: None,
            identity: CallerIdentity::Untold,
        })
    }

    /// Where a call goes that was redirected to this URI (RFC 3261 section 8.1.3.4); nowhere if it may not.
    pub fn redirected(&self, uri: &str) -> Option<(Callee, Trunk)> {
        let bare = |uri: &str| -> Option<SipUri> {
            let (address, parameters) = uri.split_once(';').unwrap_or((uri, ""));
            let mut parameters = parameters.split(';');
            let named = parameters.find(|one| one.to_ascii_lowercase().starts_with("transport="));
            let named = named.map_or_else(String::new, |named| format!(";{named}"));
            SipUri::parse(&format!("{address}{named}")).ok()
        };
        let uri = bare(uri).filter(|uri| uri.host.is_some())?;
        let trunk = self.at_host(&uri, None, "Contact").ok()?;
        let callee = PhoneNumber::parse(&uri.user).map_or(Callee::User(uri.user), Callee::Number);
        Some((callee, trunk))
    }

    /// Where a call goes that the other side of another one asks for (RFC 3515); nowhere if it may not.
    pub fn referred(&self, uri: &str) -> Option<(Callee, Trunk)> {
        let (callee, trunk) = self.redirected(uri)?;
        match &callee {
            Callee::Number(number) => self.destinations.check(number).ok()?,
            Callee::User(_) | Callee::Phone { .. } => {}
        }
        Some((callee, trunk))
    }

    /// A tenant does not call with a number of another one, however it is written. The operator may use any.
    fn check_caller_id(&self, access: &Access, number: &PhoneNumber) -> Result<(), CallsError> {
        match access.tenant() {
            Some(caller) if self.numbers.is_anothers(number, caller) => {
                Err(CallsError::OthersNumber)
            }
            _ => Ok(()),
        }
    }

    fn check(&self, number: &PhoneNumber, field: &'static str) -> Result<(), CallsError> {
        let checked = self.destinations.check(number);
        checked.map_err(|reason| CallsError::NotAllowed { field, reason })
    }
}

fn precondition(message: &str) -> CallsError {
    CallError::new(CallErrorKind::Precondition, message).into()
}

pub struct CallRegistry(Option<Calls>);

/// What the registry works with.
#[derive(Clone)]
pub struct Calls {
    pub rooms: Rooms,
    /// What may be called, and how.
    pub rules: CallRules,
    /// How many calls there may be.
    pub quota: Quota,
    pub ledger: Arc<Ledger>,
    /// The warm transfers.
    pub transfers: Arc<Transfers>,
    /// Who waits for somebody.
    pub queues: Arc<Queues>,
    /// Where transfers are reported; `None` without webhooks.
    pub webhooks: Option<Webhooks>,
}

impl CallRegistry {
    /// A registry of calls into these rooms; `None` where there are no rooms.
    pub const fn new(calls: Option<Calls>) -> Self {
        Self(calls)
    }

    fn with<T: 'static, F: Future<Output = Result<T, CallsError>> + 'static>(
        &self,
        act: impl FnOnce(Calls) -> F,
    ) -> ResponseFuture<Result<T, CallsError>> {
        match &self.0 {
            Some(calls) => Box::pin(act(calls.clone())),
            None => Box::pin(async { Err(RoomsError::NotConfigured.into()) }),
        }
    }
}

impl Calls {
    fn telephone(&self) -> Result<Arc<dyn Telephone>, CallsError> {
        let provider = &self.rooms.provider;
        provider
            .telephone()
            .ok_or_else(|| CallsError::NoTelephone(provider.slug()))
    }

    async fn place(self, wish: PlaceCall) -> Result<PlacedCall, CallsError> {
        let (to, trunk, alternatives) = self.destination(&wish)?;
        self.rules.check_caller_id(&wish.access, &wish.from)?;
        let telephone = self.telephone()?;
        if wish.classify.is_some() && !telephone.classifies() {
            return Err(CallsError::NotClassified(self.rooms.provider.slug()));
        }
        let permit = self.quota.take(&wish.access.party())?;
        let owner = self.rooms.open_for_call(&wish.access, &wish.room).await?;
        let call = NewCall {
            room: wish.room,
            identity: wish.identity,
            principal: wish.access.principal(),
            name: wish.name,
            metadata: String::new(),
            from: wish.from,
            display_name: wish.display_name,
            hides_caller: wish.hides_caller,
            to,
            trunk,
            alternatives,
            attributes: Vec::new(),
            hides_numbers: false,
            ringing_timeout: self.rules.ringing_timeout,
            max_duration: self.rules.max_duration,
            dtmf: String::new(),
            classify: wish.classify,
        };
        Ok(telephone.call(call, Line { owner, permit }).await?)
    }

    /// Whom a request calls, where, and where it goes if that fails.
    fn destination(&self, wish: &PlaceCall) -> Result<(Callee, Trunk, Vec<Trunk>), CallsError> {
        match &wish.to {
            Target::Number(number) => {
                let (trunk, others) = self.rules.trunks(wish.gateway.clone(), number)?;
                self.rules.check(number, "to_phone_number")?;
                Ok((Callee::Number(number.clone()), trunk, others))
            }
            Target::Uri(uri) => {
                let login = wish.gateway.login.clone();
                let trunk = self.rules.at_host(uri, login, "to_sip_uri")?;
                let user = uri.user.clone();
                let callee = match uri.host {
                    Some(_) => Callee::User(user),
                    None => Callee::Phone {
                        user,
                        tenant: wish.access.tenant().cloned(),
                    },
                };
                Ok((callee, trunk, Vec::new()))
            }
        }
    }

    async fn dial_trunk(self, wish: DialTrunk) -> Result<PlacedCall, CallsError> {
        let DialTrunk {
            mut call,
            encrypted,
            until_answered,
        } = wish;
        if encrypted && !self.rules.encrypts {
            return Err(CallsError::Unencrypted);
        }
        if let Callee::Number(number) = &call.to {
            self.rules.check(number, "sip_call_to")?;
        }
        call.trunk.private =
            self.rules.allow_private || self.rules.gateways.at(&call.trunk.gateway).is_some();
        let patience = call.ringing_timeout + RINGING_SLACK;
        let telephone = self.telephone()?;
        let owner = self
            .rooms
            .open_for_call(&Access::anonymous(), &call.room)
            .await?;
        let permit = self.quota.hold(&Party::Operator);
        let placed = telephone.call(call, Line { owner, permit }).await?;
        if until_answered {
            let answered = timeout(patience, self.ledger.answered(&placed.sip_call_id)).await;
            answered
                .unwrap_or(Err(HangupCause::NoAnswer))
                .map_err(CallsError::Unanswered)?;
        }
        Ok(placed)
    }

    async fn transfer(self, wish: TransferCall) -> Result<(), CallsError> {
        if let Some(number) = number_of(&wish.to) {
            self.rules.check(&number, "transfer_to")?;
        }
        let (owner, caller) = self
            .on_the_phone(&wish.access, &wish.room, &wish.identity)
            .await?;
        if is_by_carrier(&caller) {
            return Err(CallsError::ByCarrier);
        }
        let telephone = self.telephone()?;
        let transfer = NewTransfer {
            call: CallOf::participant(&wish.room, &caller),
            to: wish.to,
            ringing_timeout: wish.ringing_timeout.unwrap_or(self.rules.ringing_timeout),
        };
        let (accept, accepted) = oneshot::channel();
        let (end, mut outcome) = oneshot::channel();
        // It goes on, and is reported, even if nobody waits for it.
        actix::spawn(async move {
            let told = self.notice_of(&transfer, owner);
            let moved = telephone.transfer(transfer, accept).await;
            let event = told(moved.as_ref().err());
            let _gone = end.send(moved);
            if let Some(webhooks) = &self.webhooks {
                webhooks.enqueue(&event).await;
            }
        });
        let ended = |outcome: Result<Result<(), CallError>, oneshot::error::RecvError>| {
            let failed = || CallError::new(CallErrorKind::Unavailable, "the transfer has failed");
            outcome
                .unwrap_or_else(|_| Err(failed()))
                .map_err(CallsError::from)
        };
        if wish.until == Until::Done {
            return ended(outcome.await);
        }
        tokio::select! {
            biased;
            outcome = &mut outcome => ended(outcome),
            // One who cannot tell drops the sender.
            Ok(()) = accepted => Ok(()),
            () = sleep(REFUSAL_PATIENCE) => Ok(()),
        }
    }

    /// What is told when a transfer has ended.
    fn notice_of(
        &self,
        transfer: &NewTransfer,
        owner: Owner,
    ) -> impl FnOnce(Option<&CallError>) -> Event + use<> {
        let CallOf { room, identity, .. } = transfer.call.clone();
        let sip_call_id = self.ledger.id_of(&room, &identity);
        let (room_name, participant_identity) = (room, identity);
        let transfer_to = match &transfer.to {
            TransferTarget::Number(number) => number.as_str().to_owned(),
            TransferTarget::Uri(uri) => uri.clone(),
        };
        move |error| {
            let event = EventKind::TransferStatus {
                sip_call_id,
                room_name,
                participant_identity,
                transfer_to,
                mode: None,
                transfer_id: None,
                person_identity: None,
                outcome: match error {
                    None => TransferOutcome::Complete,
                    Some(error) => TransferOutcome::Failed {
                        message: error.message.clone(),
                    },
                },
            };
            Event::of_room(owner.tenant(), event)
        }
    }

    async fn hang_up(self, wish: HangUp) -> Result<(), CallsError> {
        let (_, caller) = self
            .on_the_phone(&wish.access, &wish.room, &wish.identity)
            .await?;
        if is_by_carrier(&caller) {
            // The call ends with its place in the room.
            let (room, by) = (&wish.room, &wish.access);
            let removed = self.rooms.provider.remove(room, &wish.identity, by).await;
            return Ok(removed.map_err(RoomsError::Removal)?);
        }
        let call = CallOf::participant(&wish.room, &caller);
        Ok(self.telephone()?.hang_up(&call).await?)
    }

    /// Whose room it is, and somebody of this identity who is there by telephone.
    async fn on_the_phone(
        &self,
        access: &Access,
        room: &str,
        identity: &str,
    ) -> Result<(Owner, ParticipantInfo), CallsError> {
        let (owner, participant) = self.rooms.seen(access, room, identity).await?;
        if is_on_the_phone(&participant) {
            Ok((owner, participant))
        } else {
            Err(RoomsError::NoParticipant.into())
        }
    }
}

/// The number that is called by a transfer, where it is one.
fn number_of(target: &TransferTarget) -> Option<PhoneNumber> {
    match target {
        TransferTarget::Number(number) => Some(number.clone()),
        TransferTarget::Uri(uri) => {
            let (_, rest) = uri.split_once(':')?;
            // `%39%31%31` and `911:password` are called as 911 is.
            let rest = percent_decode_str(rest).decode_utf8_lossy();
            let user = rest.split(['@', ';', '?', ':']).next()?;
            PhoneNumber::parse(user).ok()
        }
    }
}

impl Actor for CallRegistry {
    type Context = Context<Self>;

    fn started(&mut self, context: &mut Context<Self>) {
        context.set_mailbox_capacity(1024);
    }
}

impl Handler<PlaceCall> for CallRegistry {
    type Result = ResponseFuture<<PlaceCall as Message>::Result>;

    fn handle(&mut self, wish: PlaceCall, _: &mut Context<Self>) -> Self::Result {
        self.with(|calls| calls.place(wish))
    }
}

impl Handler<DialTrunk> for CallRegistry {
    type Result = ResponseFuture<<DialTrunk as Message>::Result>;

    fn handle(&mut self, wish: DialTrunk, _: &mut Context<Self>) -> Self::Result {
        self.with(|calls| calls.dial_trunk(wish))
    }
}

impl Handler<TransferCall> for CallRegistry {
    type Result = ResponseFuture<<TransferCall as Message>::Result>;

    fn handle(&mut self, wish: TransferCall, _: &mut Context<Self>) -> Self::Result {
        self.with(|calls| calls.transfer(wish))
    }
}

impl Handler<HangUp> for CallRegistry {
    type Result = ResponseFuture<<HangUp as Message>::Result>;

    fn handle(&mut self, wish: HangUp, _: &mut Context<Self>) -> Self::Result {
        self.with(|calls| calls.hang_up(wish))
    }
}

impl Handler<HearWords> for CallRegistry {
    type Result = ();

    fn handle(&mut self, HearWords { call, text }: HearWords, _: &mut Context<Self>) {
        if let Some(telephone) = self.telephone() {
            telephone.heard(&call, &text);
        }
    }
}

impl Handler<ListCalls> for CallRegistry {
    type Result = MessageResult<ListCalls>;

    fn handle(&mut self, ListCalls { access }: ListCalls, _: &mut Context<Self>) -> Self::Result {
        let Some(calls) = &self.0 else {
            return MessageResult(Vec::new());
        };
        let reports = calls
            .rooms
            .provider
            .telephone()
            .map_or_else(Vec::new, |telephone| telephone.calls());
        MessageResult(
            calls
                .ledger
                .list(|owner| owner.lets(&access), reports, Instant::now()),
        )
    }
}

impl CallRegistry {
    /// The telephone, for the operator.
    fn operators(&self, access: &Access) -> Option<Arc<dyn Telephone>> {
        let calls = self.0.as_ref();
        let calls = calls.filter(|_| access.tenant().is_none() && !access.is_public());
        calls.and_then(|calls| calls.rooms.provider.telephone())
    }
}

impl Handler<ListRefused> for CallRegistry {
    type Result = MessageResult<ListRefused>;

    fn handle(
        &mut self,
        ListRefused { access }: ListRefused,
        _: &mut Context<Self>,
    ) -> Self::Result {
        let telephone = self.operators(&access);
        MessageResult(telephone.map_or_else(Vec::new, |telephone| telephone.refused()))
    }
}

/// Whether a caller may see a trace: the operator all, a tenant those of its own calls.
fn may_trace(access: &Access, trace: &CallTrace) -> bool {
    match access.tenant() {
        _ if access.is_public() => false,
        None => true,
        Some(tenant) => matches!(&trace.owner, Some(Owner::Tenant(owner)) if owner == tenant),
    }
}

impl CallRegistry {
    /// The telephone, for whoever it is.
    fn telephone(&self) -> Option<Arc<dyn Telephone>> {
        self.0.as_ref()?.rooms.provider.telephone()
    }
}

impl Handler<ListGateways> for CallRegistry {
    type Result = MessageResult<ListGateways>;

    fn handle(
        &mut self,
        ListGateways { access }: ListGateways,
        _: &mut Context<Self>,
    ) -> Self::Result {
        let gateways = self.operators(&access);
        let gateways = gateways.map_or_else(Vec::new, |telephone| telephone.gateways());
        let telephone = self.telephone().filter(|_| !access.is_public());
        let mut phones = telephone.map_or_else(Vec::new, |telephone| telephone.phones());
        let tenant = access.tenant();
        phones.retain(|phone| tenant.is_none() || phone.tenant.as_ref() == tenant);
        MessageResult((gateways, phones))
    }
}

impl Handler<ListTraces> for CallRegistry {
    type Result = MessageResult<ListTraces>;

    fn handle(&mut self, ListTraces { access }: ListTraces, _: &mut Context<Self>) -> Self::Result {
        let telephone = self.telephone();
        let mut traces = telephone.map_or_else(Vec::new, |telephone| telephone.traces());
        traces.retain(|trace| may_trace(&access, trace));
        MessageResult(traces)
    }
}

impl Handler<GetTrace> for CallRegistry {
    type Result = MessageResult<GetTrace>;

    fn handle(&mut self, GetTrace { access, id }: GetTrace, _: &mut Context<Self>) -> Self::Result {
        let telephone = self.telephone();
        let trace = telephone.and_then(|telephone| telephone.trace(&id));
        MessageResult(trace.filter(|trace| may_trace(&access, trace)))
    }
}

impl Handler<ListRegistrations> for CallRegistry {
    type Result = MessageResult<ListRegistrations>;

    fn handle(
        &mut self,
        ListRegistrations { access }: ListRegistrations,
        _: &mut Context<Self>,
    ) -> Self::Result {
        let telephone = self.operators(&access);
        MessageResult(telephone.map_or_else(Vec::new, |telephone| telephone.registrations()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vivavoce_auth::TenantId;
    use vivavoce_config::{Config, Secret};
    use vivavoce_seams::rooms::telephone::{Direction, TraceState};

    fn rules(private: &str) -> CallRules {
        let environment = [
            ("SIP_OUTBOUND_ADDRESS", "Gateway.example.org"),
            ("SIP_OUTBOUND_AUTH_USERNAME", "server"),
            ("SIP_OUTBOUND_AUTH_PASSWORD", "the server's"),
            ("SIP_ALLOW_PRIVATE_OUTBOUND", private),
        ];
        let environment = environment.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let config = Config::from_sources(&[], &environment.into(), None).unwrap();
        CallRules::new(&config.settings.sip)
    }

    #[test]
    fn a_tenant_sees_the_traces_of_its_own_calls() {
        let trace = |owner: Option<Owner>| CallTrace {
            id: "SCL_1".to_owned(),
            state: TraceState::Failed,
            direction: Direction::Inbound,
            owner,
            at: std::time::SystemTime::now(),
            room: String::new(),
            identity: String::new(),
            status: None,
            reason: String::new(),
            times: 1,
            seen: 0,
            left_out: 0,
            messages: Vec::new(),
        };
        let of = |tenant: &str| Owner::Tenant(TenantId::new(tenant).unwrap());
        for (access, owner, sees) in [
            (Access::of_tenant("a"), Some(of("a")), true),
            (Access::of_tenant("a"), Some(of("b")), false),
            (Access::of_tenant("a"), Some(Owner::Nobody), false),
            (Access::of_tenant("a"), None, false),
            (Access::anonymous(), Some(of("b")), true),
            (Access::anonymous(), None, true),
        ] {
            assert_eq!(may_trace(&access, &trace(owner.clone())), sees, "{owner:?}");
        }
    }

    #[test]
    fn a_redirection_goes_to_hosts_of_the_settings_and_to_no_emergency_number() {
        let environment = [
            ("SIP_OUTBOUND_ADDRESS", "gw.example.org"),
            ("SIP_OUTBOUND_AUTH_USERNAME", "server"),
            ("SIP_ALLOWED_HOSTS", "*.example.net"),
        ];
        let environment = environment.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let config = Config::from_sources(&[], &environment.into(), None).unwrap();
        let rules = CallRules::new(&config.settings.sip);
        let (callee, trunk) = rules
            .redirected("sip:+49301234567@gw.example.org;user=phone")
            .unwrap();
        assert!(matches!(callee, Callee::Number(_)) && trunk.login.is_some());
        let (callee, trunk) = rules
            .redirected("sip:bob@a.example.net;ob;transport=tcp")
            .unwrap();
        assert_eq!(callee, Callee::User("bob".to_owned()));
        assert!(trunk.login.is_none() && !trunk.private);
        assert_eq!(trunk.transport, SipTransport::Tcp);
        for uri in [
            "sip:bob@evil.example",
            "sip:112@gw.example.org",
            "sip:bob",
            "tel:+49301234567",
            "sip:%39%31%31@gw.example.org",
        ] {
            assert!(rules.redirected(uri).is_none(), "{uri}");
        }
    }

    #[test]
    fn nobody_calls_with_a_number_of_another_tenant() {
        let numbers = r#"{"a": ["+49 30 1234567"], "b": ["+49307654321"]}"#;
        let environment = [("SIP_TENANT_NUMBERS".to_owned(), numbers.to_owned())];
        let config = Config::from_sources(&[], &environment.into(), None).unwrap();
        let rules = CallRules::new(&config.settings.sip);
        for (tenant, number, allowed) in [
            (Some("a"), "+49301234567", true),
            (Some("a"), "+49-30-7654321", false),
            (Some("b"), "+49301234567", false),
            (Some("c"), "tel:+49301234567", false),
            // Gateways take them for one number.
            (Some("b"), "49301234567", false),
            (Some("b"), "0049301234567", false),
            (Some("b"), "0049 30 1234567", false),
            (Some("a"), "49301234567", true),
            (Some("a"), "0049 30 1234567", true),
            // A number of nobody's.
            (Some("a"), "+14155550100", true),
            (None, "+49301234567", true),
        ] {
            let access = tenant.map_or_else(Access::anonymous, Access::of_tenant);
            let number = PhoneNumber::parse(number).unwrap();
            let checked = rules.check_caller_id(&access, &number);
            assert_eq!(checked.is_ok(), allowed, "{tenant:?} {number:?}");
            if let Err(error) = checked {
                assert!(error.to_string().starts_with("from_phone_number: "));
            }
        }
    }

    fn anybody() -> PhoneNumber {
        PhoneNumber::parse("+14155550123").unwrap()
    }

    fn trunk(address: Option<&str>, username: Option<&str>) -> Trunk {
        let own = OwnGateway {
            address: address.map(|address| Gateway::parse(address).unwrap()),
            login: username.map(|username| Login {
                username: username.to_owned(),
                password: Secret::new(""),
            }),
        };
        rules("false").trunks(own, &anybody()).unwrap().0
    }

    fn login(trunk: &Trunk) -> Option<(&str, &str)> {
        let login = trunk.login.as_ref()?;
        Some((&login.username, login.password.expose()))
    }

    #[test]
    fn the_servers_credential_is_used_at_its_own_gateway_alone_and_never_in_part() {
        let servers = Some(("server", "the server's"));
        let own = Some(("own", ""));
        for (address, username, expected) in [
            (None, None, servers),
            (Some("gateway.example.org"), None, servers),
            (Some("GATEWAY.example.org:5060"), None, servers),
            (Some("gateway.example.org:5061"), None, None),
            (Some("gateway.example.org.evil.example"), None, None),
            (Some("192.0.2.1"), None, None),
            (None, Some("own"), own),
            (Some("gateway.example.org"), Some("own"), own),
            (Some("192.0.2.1"), Some("own"), own),
        ] {
            let trunk = trunk(address, username);
            assert_eq!(login(&trunk), expected, "{address:?} {username:?}");
            let configured = address.is_none_or(|address| {
                matches!(address, "gateway.example.org" | "GATEWAY.example.org:5060")
            });
            assert_eq!(trunk.private, configured, "{address:?}");
        }
        let foreign = OwnGateway {
            address: Gateway::parse("192.0.2.1"),
            login: None,
        };
        assert!(rules("true").trunks(foreign, &anybody()).unwrap().0.private);
    }

    #[test]
    fn a_call_without_any_address_goes_nowhere() {
        let config = Config::from_sources(&[], &std::collections::HashMap::new(), None).unwrap();
        let rules = CallRules::new(&config.settings.sip);
        let nowhere = rules.trunks(OwnGateway::default(), &anybody());
        assert!(matches!(nowhere, Err(CallsError::NoAddress)));
    }

    #[test]
    fn the_number_in_a_uri_is_found() {
        for (uri, number) in [
            ("sip:112@gateway.example.org", Some("112")),
            ("sips:911;phone-context=x@a", Some("911")),
            ("tel:999", Some("999")),
            ("sip:%39%31%31@example.org", Some("911")),
            ("sip:911:secret@example.org", Some("911")),
            ("sip:911%3Bphone-context=x@example.org", Some("911")),
            ("tel:%2B15105550100", Some("+15105550100")),
            ("sip:ann@example.org", None),
        ] {
            let found = number_of(&TransferTarget::Uri(uri.to_owned()));
            assert_eq!(found.as_ref().map(PhoneNumber::as_str), number, "{uri}");
        }
    }
}
