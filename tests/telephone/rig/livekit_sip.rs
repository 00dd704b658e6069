//! LiveKit's own SIP service, which carries the calls of a LiveKit deployment, as `./test --long` installs it.

use super::{Program, listened, ports};
use crate::harness::livekit::installed;
use crate::rooms::{KEY, SECRET};

/// How many ports it has for audio.
const MEDIA: u16 = 40;

/// A running service. Dropping it ends it.
pub struct LiveKitSip {
    /// Where telephones call it, with UDP.
    pub port: u16,
    _program: Program,
}

impl LiveKitSip {
    /// One for the deployment at this address, with whose nodes it shares the Redis at this port.
    pub async fn start(livekit: &str, redis: u16) -> Self {
        let port = ports(2 + MEDIA);
        let config = format!(
            "api_key: {KEY}\n\
             api_secret: {SECRET}\n\
             ws_url: {livekit}\n\
             redis: {{address: '127.0.0.1:{redis}'}}\n\
             sip_port: {port}\n\
             rtp_port: {}-{}\n\
             use_external_ip: false\n\
             local_net: 127.0.0.0/8\n\
             listen_ip: 127.0.0.1\n\
             nat_1_to_1_ip: 127.0.0.1\n\
             max_cpu_utilization: 1\n\
             logging: {{level: info}}\n",
            port + 2,
            port + 1 + MEDIA,
        );
        let program = installed("livekit-sip", "livekit-sip");
        let folder = tempfile::tempdir().unwrap();
        let program = Program::start_at("livekit-sip", &program, folder, |command| {
            command.args(["--config-body", &config]);
        });
        listened("udp", port).await;
        Self {
            port,
            _program: program,
        }
    }
}
