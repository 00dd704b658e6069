//! Agents that the server dials (protocol, section 4, "Agents"). For each inbound call, and with `agent.rooms` for each
//! room that a person enters, the server opens a WebSocket to the agent, says which call it is, and from then on the agent
//! is the client of an ordinary session: it sends `config`, whose `rtc` the server fills in. So agents scale behind an
//! ordinary load balancer and need no open port of the server's.
//!
//! # Parts
//!
//! * [`AgentRoutes`]: which agent is for which call, from the settings.
//! * [`dial`]: the handshake, signed as webhooks are, within the operator's egress policy.
//! * [`socket`]: the agent's messages, with what it may leave out filled in.
//! * [`AgentDialler`]: the actor that is told of calls. Each gets a task: it dials until an agent has taken the call or
//!   `agent.patience_seconds` are over, and again when the agent's socket breaks while the caller is still there.
//! * [`line`]: calls that are in no room, such as those of carriers' sockets: the agent's session is without sound of its own
//!   socket, and its sound is that of the call.
//! * [`apology`]: what a caller hears for whom there is no agent.
//!
//! # Example
//!
//! ```
//! use std::collections::HashMap;
//! use vivavoce_agents::AgentRoutes;
//! use vivavoce_config::Config;
//!
//! let flags = [
//!     ("agent.url".to_owned(), "wss://agents.example/calls".to_owned()),
//!     ("agent.secret".to_owned(), "0123456789abcdef".to_owned()),
//! ];
//! let config = Config::from_sources(&flags, &HashMap::new(), None).unwrap();
//! let routes = AgentRoutes::new(&config.settings).unwrap().unwrap();
//! assert!(routes.of(None, Some("+4930123456"), None).is_some());
//! ```

mod apology;
mod dial;
mod dialler;
mod line;
mod routes;
mod socket;

pub use dialler::{AgentDialler, AgentLines, DialOthers, DialPlan, DiallerParts, LineAgent};
pub use line::{Line, LineCall, LineSession};
pub use routes::{AgentRoute, AgentRoutes};
