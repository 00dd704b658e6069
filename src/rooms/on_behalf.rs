//! Rooms as one caller may see and change them. Whose a room is, is asked in the step that acts: between the two it cannot
//! become somebody else's. A room of somebody else is not there.

use livekit_protocol as proto;

use super::Now;
use super::operations::OperationError;
use super::server::RoomServer;
use super::world::World;
use vivavoce_auth::{Access, Owner};

/// See the module; made by [`RoomServer::on_behalf_of`].
#[derive(Debug)]
pub struct OnBehalf<'a> {
    server: &'a RoomServer,
    access: &'a Access,
}

impl World {
    /// Whether there is a room of this name for this caller.
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
    /// The rooms for this caller.
    pub const fn on_behalf_of<'a>(&'a self, access: &'a Access) -> OnBehalf<'a> {
        OnBehalf {
            server: self,
            access,
        }
    }
}

impl OnBehalf<'_> {
    /// Does something in a room, if it still is one for this caller.
    async fn act<T: Send + 'static>(
        &self,
        room: &str,
        work: impl FnOnce(&mut World, &str, Now) -> Result<T, OperationError> + Send + 'static,
    ) -> Result<T, OperationError> {
        let (room, access) = (room.to_owned(), self.access.clone());
        let act = move |world: &mut World, now| {
            world.check_access(&room, &access)?;
            work(world, &room, now)
        };
        self.server.call(act).await?
    }

    /// A room and everybody in it.
    pub async fn look_into(
        &self,
        room: &str,
    ) -> Result<(proto::Room, Vec<proto::ParticipantInfo>), OperationError> {
        self.act(room, |world, room, _| {
            Ok((world.get_room(room)?, world.list_participants(room)?))
        })
        .await
    }

    /// See [`World::delete_room`].
    pub async fn delete_room(&self, room: &str) -> Result<(), OperationError> {
        self.act(room, World::delete_room).await
    }

    /// See [`World::delete_deserted_room`].
    pub async fn delete_deserted_room(
        &self,
        room: &str,
        identity: String,
    ) -> Result<(), OperationError> {
        let principal = self.access.principal();
        self.act(room, move |world, room, now| {
            world.delete_deserted_room(room, &identity, &principal, now)
        })
        .await
    }

    /// See [`World::remove_participant`].
    pub async fn remove_participant(
        &self,
        room: &str,
        identity: String,
    ) -> Result<(), OperationError> {
        self.act(room, move |world, room, now| {
            world.remove_participant(room, &identity, now)
        })
        .await
    }

    /// See [`World::mute_track`].
    pub async fn mute_track(
        &self,
        room: &str,
        identity: String,
        sid: String,
        muted: bool,
    ) -> Result<proto::TrackInfo, OperationError> {
        self.act(room, move |world, room, _| {
            world.mute_track(room, &identity, &sid, muted)
        })
        .await
    }
}
