//! A bidirectional gRPC call. Messages are sent through a bounded queue, whose end is the half-close. Dropping the answers
//! cancels the call.

use std::time::Duration;

use http::uri::PathAndQuery;
use prost::Message;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::task::AbortOnDropHandle;
use tonic::client::Grpc;
use tonic::metadata::MetadataValue;
use tonic::transport::Channel;
use tonic::{Request, Response, Status, Streaming};
use tonic_prost::ProstCodec;

use super::channels::Lease;
use super::{Access, GoogleEndpoint, Shared};
use vivavoce_config::value::Secret;
use vivavoce_seams::ProviderError;

/// Messages that may wait to be sent.
const REQUESTS_HELD: usize = 8;
/// The largest answer that is taken.
const MAX_ANSWER_BYTES: usize = 16 << 20;

/// What a call needs: a place on a connection, and a token.
pub(super) struct AuthorizedChannel {
    lease: Lease,
    token: Secret,
}

impl GoogleEndpoint {
    /// A place on a connection and a token of the credential, within `patience` each.
    pub(super) async fn channel(
        &self,
        access: &Access,
        patience: Duration,
    ) -> Result<AuthorizedChannel, ProviderError> {
        let Shared { channels, tokens } = &*self.shared;
        let fingerprint = access.credential.fingerprint();
        let (lease, token) = tokio::try_join!(
            channels.lease(self.vendor.url.url(), fingerprint, patience),
            tokens.get(&access.credential, access.of_server, patience),
        )?;
        Ok(AuthorizedChannel { lease, token })
    }
}

impl AuthorizedChannel {
    /// Whether the connection was there before, and may have died since.
    pub(super) const fn used_before(&self) -> bool {
        self.lease.used_before
    }

    fn request<T>(&self, message: T) -> Result<Request<T>, Status> {
        let mut request = Request::new(message);
        let bearer = format!("Bearer {}", self.token.expose());
        let mut bearer: MetadataValue<_> = bearer
            .parse()
            .map_err(|_| Status::unauthenticated("the token is not printable"))?;
        bearer.set_sensitive(true);
        request.metadata_mut().insert("authorization", bearer);
        Ok(request)
    }

    fn grpc(&self) -> Grpc<Channel> {
        Grpc::new(self.lease.channel.clone()).max_decoding_message_size(MAX_ANSWER_BYTES)
    }

    /// Asks once and is answered once.
    pub(super) async fn ask<Q, A>(self, method: &'static str, question: Q) -> Result<A, Status>
    where
        Q: Message + 'static,
        A: Message + Default + 'static,
    {
        let request = self.request(question)?;
        let mut grpc = self.grpc();
        ready(&mut grpc).await?;
        let method = PathAndQuery::from_static(method);
        let codec = ProstCodec::<Q, A>::default();
        let answer = grpc.unary(request, method, codec).await?;
        Ok(answer.into_inner())
    }

    /// Begins a call with its first message; the call is under way whether its answers are read or not.
    pub(super) fn call<Q, A>(self, method: &'static str, first: Q) -> (mpsc::Sender<Q>, Answers<A>)
    where
        Q: Message + 'static,
        A: Message + Default + 'static,
    {
        let (requests, waiting) = mpsc::channel(REQUESTS_HELD);
        // There is room for the first.
        let _ = requests.try_send(first);
        let mut grpc = self.grpc();
        let request = self.request(ReceiverStream::new(waiting));
        let opening = tokio::spawn(async move {
            ready(&mut grpc).await?;
            let method = PathAndQuery::from_static(method);
            let codec = ProstCodec::<Q, A>::default();
            grpc.streaming(request?, method, codec).await
        });
        let answers = Answers {
            state: State::Opening(AbortOnDropHandle::new(opening)),
            lease: self.lease,
        };
        (requests, answers)
    }
}

async fn ready(grpc: &mut Grpc<Channel>) -> Result<(), Status> {
    let ready = grpc.ready().await;
    ready.map_err(|error| Status::from_error(Box::new(error)))
}

/// What comes back from a call.
pub(super) struct Answers<A> {
    state: State<A>,
    lease: Lease,
}

enum State<A> {
    /// Google may not say a word before it has heard one.
    Opening(AbortOnDropHandle<Result<Response<Streaming<A>>, Status>>),
    Open(Box<Streaming<A>>),
    Ended,
}

impl<A> Answers<A> {
    /// The place on the connection.
    pub(super) const fn lease(&self) -> &Lease {
        &self.lease
    }

    /// The next answer; `None` after the last, when the call has ended well. May be dropped and called again.
    pub(super) async fn next(&mut self) -> Result<Option<A>, Status> {
        if let State::Opening(opening) = &mut self.state {
            let opened = opening.await;
            self.state = State::Ended;
            let opened = opened.map_err(|error| Status::from_error(Box::new(error)))??;
            self.state = State::Open(Box::new(opened.into_inner()));
        }
        match &mut self.state {
            State::Open(answers) => answers.message().await,
            State::Opening(_) | State::Ended => Ok(None),
        }
    }
}
