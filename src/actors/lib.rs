//! Sessions and registries: actors that each own a piece of state. The HTTP handlers send them messages; audio bypasses
//! their mailboxes.

pub mod egress;
mod ids;
pub mod mixes;
pub mod recorder;
pub mod registry;
pub mod responder;
pub mod restarts;
pub mod room;
pub mod session;
pub mod stt;
mod threads;
pub mod tts;

use actix::{Actor, Addr, AsyncContext, Context};
use tracing::Instrument;

/// [`Actor::create`] within the current span, to which the actor's log lines belong.
fn start_in_span<A: Actor<Context = Context<A>>>(
    make: impl FnOnce(&mut Context<A>) -> A,
) -> Addr<A> {
    let mut context = Context::new();
    let actor = make(&mut context);
    let address = context.address();
    actix::spawn(context.into_future(actor).in_current_span());
    address
}
