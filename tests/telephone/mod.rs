//! The telephone side: calls between our server and other people's telephones and networks, and what is heard.

mod rig;
mod rigs;
