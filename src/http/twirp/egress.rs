//! `livekit.Egress`: recordings of the sound of rooms, participants and tracks.

use actix_web::HttpResponse;
use livekit_protocol as proto;

use super::{Call, Failure};
use vivavoce_actors::egress::request::{Automatic, Wanted};
use vivavoce_actors::egress::{EgressError, EgressService};

impl From<EgressError> for Failure {
    fn from(error: EgressError) -> Self {
        let code = match &error {
            EgressError::InvalidArgument(_) => "invalid_argument",
            EgressError::NotFound(_) => "not_found",
            EgressError::Exists(_) => "already_exists",
            EgressError::FailedPrecondition(_) => "failed_precondition",
            EgressError::Quota(_) => "resource_exhausted",
            EgressError::Unavailable(_) => "unavailable",
        };
        Self::new(code, error.to_string())
    }
}

impl Call<'_> {
    fn egress(&self) -> Result<&EgressService, Failure> {
        let off = "this server keeps no recordings (recording.backend)";
        self.egress
            .ok_or_else(|| Failure::new("failed_precondition", off))
    }

    /// What `CreateRoom` asks to be recorded of a room.
    pub(super) fn automatic_egress(
        &self,
        egress: proto::RoomEgress,
        room: &str,
    ) -> Result<(&EgressService, Automatic), Failure> {
        Ok((self.egress()?, Automatic::new(egress, room)?))
    }

    /// Handles a method.
    pub(super) async fn egress_service(&self) -> Result<HttpResponse, Failure> {
        let (by, wire) = (self.claims.principal(), self.wire);
        let wanted = match self.method.name {
            "StartRoomCompositeEgress" => Wanted::of_room(self.anywhere()?)?,
            "StartParticipantEgress" => Wanted::of_participant(self.anywhere()?)?,
            "StartTrackEgress" => Wanted::of_track(self.anywhere()?)?,
            "ListEgress" => {
                let said: proto::ListEgressRequest = self.anywhere()?;
                let items = self.egress()?.list(&said, &by).await?;
                return wire.answer(&proto::ListEgressResponse {
                    items,
                    next_page_token: None,
                });
            }
            "StopEgress" => {
                let said: proto::StopEgressRequest = self.anywhere()?;
                return wire.answer(&self.egress()?.stop(&said.egress_id, &by).await?);
            }
            _ => return Err(self.forgotten()),
        };
        wire.answer(&self.egress()?.start(wanted, &by).await?)
    }
}
