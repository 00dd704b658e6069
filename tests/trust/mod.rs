//! What a stranger, a participant or a tenant cannot do to the others: attacks on running servers. One file per area.

mod children;
mod doors;
mod ownership;
mod quotas;
mod telephone;
mod turn;
