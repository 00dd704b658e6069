//! `livekit.AgentDispatchService`.

use actix_web::HttpResponse;
use livekit_protocol as proto;

use super::{Call, Failure};

impl Call<'_> {
    /// Handles a method.
    pub(super) async fn dispatch_service(&self) -> Result<HttpResponse, Failure> {
        let (rooms, wire) = (self.rooms, self.wire);
        match self.method.name {
            "CreateDispatch" => {
                let said = self.of_room(|said: &proto::CreateAgentDispatchRequest| &said.room)?;
                wire.answer(&rooms.create_dispatch(said).await?)
            }
            "DeleteDispatch" => {
                let said = self.of_room(|said: &proto::DeleteAgentDispatchRequest| &said.room)?;
                wire.answer(&rooms.delete_dispatch(said.room, said.dispatch_id).await?)
            }
            "ListDispatch" => {
                let said = self.of_room(|said: &proto::ListAgentDispatchRequest| &said.room)?;
                let agent_dispatches = rooms.list_dispatches(said.room, said.dispatch_id).await?;
                wire.answer(&proto::ListAgentDispatchResponse { agent_dispatches })
            }
            _ => Err(self.forgotten()),
        }
    }
}
