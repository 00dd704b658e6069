//! Room operations on behalf of a caller. Access is checked in the same step as the operation, so that the room cannot
//! change its owner in between. To a caller without access, the room does not exist.

use livekit_protocol as proto;

use super::Now;
use super::operations::OperationError;
use super::server::RoomServer;
use super::sfu::Sfu;
use vivavoce_auth::{Access, Owner};

/// Operations for one caller, made by [`RoomServer::on_behalf_of`]. See the module.
#[derive(Debug)]
pub struct OnBehalf<'a> {
    server: &'a RoomServer,
    access: &'a Access,
}

impl Sfu {
    /// Whether this caller has access to a room of this name.
    pub fn check_access(&self, name: &str, access: &Access) -> Result<(), OperationError> {
        let room = self.room(name)?;
        if Owner::of(&room.settings.metadata).lets(access) {
            Ok(())
        } else {
            Err(OperationError::NoRoom)
        }
    }
}

impl RoomServer {
    /// Operations for this caller.
    pub const fn on_behalf_of<'a>(&'a self, access: &'a Access) -> OnBehalf<'a> {
        OnBehalf {
            server: self,
            access,
        }
    }
}

impl OnBehalf<'_> {
    /// Runs an operation if the caller has access to the room.
    async fn act<T: Send + 'static>(
        &self,
        room: &str,
        work: impl FnOnce(&mut Sfu, &str, Now) -> Result<T, OperationError> + Send + 'static,
    ) -> Result<T, OperationError> {
        let (name, access) = (room.to_owned(), self.access.clone());
        let act = move |sfu: &mut Sfu, now| {
            sfu.check_access(&name, &access)?;
            work(sfu, &name, now)
        };
        self.server.call_in(room, act).await?
    }

    /// A room and its participants.
    pub async fn look_into(
        &self,
        room: &str,
    ) -> Result<(proto::Room, Vec<proto::ParticipantInfo>), OperationError> {
        self.act(room, |sfu, room, _| {
            Ok((sfu.get_room(room)?, sfu.list_participants(room)?))
        })
        .await
    }

    /// See [`Sfu::delete_room`].
    pub async fn delete_room(&self, room: &str) -> Result<(), OperationError> {
        self.act(room, Sfu::delete_room).await
    }

    /// See [`Sfu::delete_deserted_room`].
    pub async fn delete_deserted_room(
        &self,
        room: &str,
        identity: String,
    ) -> Result<(), OperationError> {
        let principal = self.access.principal();
        self.act(room, move |sfu, room, now| {
            sfu.delete_deserted_room(room, &identity, &principal, now)
        })
        .await
    }

    /// See [`Sfu::remove_participant`].
    pub async fn remove_participant(
        &self,
        room: &str,
        identity: String,
    ) -> Result<(), OperationError> {
        self.act(room, move |sfu, room, now| {
            sfu.remove_participant(room, &identity, now)
        })
        .await
    }

    /// See [`Sfu::move_participant`]; the other room must be one of the caller's, too.
    pub async fn move_participant(
        &self,
        room: &str,
        identity: String,
        destination: String,
    ) -> Result<(), OperationError> {
        // No room goes to another thread for somebody who has no access to both.
        self.act(room, |_, _, _| Ok(())).await?;
        self.act(&destination, |_, _, _| Ok(())).await?;
        let (from, access, to) = (room.to_owned(), self.access.clone(), destination.clone());
        let work = move |sfu: &mut Sfu, now| {
            sfu.check_access(&from, &access)?;
            sfu.check_access(&to, &access)?;
            sfu.move_participant(&from, &identity, &to, now)
        };
        self.server.call_in_both((room, &destination), work).await?
    }

    /// See [`Sfu::mute_track`].
    pub async fn mute_track(
        &self,
        room: &str,
        identity: String,
        sid: String,
        muted: bool,
    ) -> Result<proto::TrackInfo, OperationError> {
        self.act(room, move |sfu, room, now| {
            sfu.mute_track(room, &identity, &sid, muted, now)
        })
        .await
    }
}
