//! Who decides: actors that own a piece of state each and are messaged by the HTTP handlers.

pub mod recorder;
pub mod registry;
pub mod room;
pub mod session;
pub mod stt;
pub mod supervision;
pub mod tts;

use actix::{Actor, Addr, AsyncContext, Context};
use tracing::Instrument;

/// Starts an actor whose log lines belong to what goes on now: [`Actor::create`] within the current span.
fn start_in_span<A: Actor<Context = Context<A>>>(
    make: impl FnOnce(&mut Context<A>) -> A,
) -> Addr<A> {
    let mut context = Context::new();
    let actor = make(&mut context);
    let address = context.address();
    actix::spawn(context.into_future(actor).in_current_span());
    address
}
