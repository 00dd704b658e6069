//! The messages between two servers: lines of JSON, with descriptors where there are any.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::io::Interest;
use tokio::net::UnixStream;

use crate::sockets::SocketName;

/// The version of these messages. A server that speaks another one is stopped and started as always.
pub(crate) const VERSION: u32 = 1;
/// The most descriptors that the kernel takes with one message (`SCM_MAX_FD`).
pub(crate) const MAX_DESCRIPTORS: usize = 253;
/// The longest line: some thousand names of rooms.
const MAX_LINE_BYTES: usize = 1 << 20;

/// What the new server says first.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Question {
    pub(crate) version: u32,
}

/// What the former server answers.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Answer {
    Offer(Offer),
    /// Why there is none.
    Refused(String),
}

/// What the former server has to hand over.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Offer {
    /// What the resume tokens of its sessions begin with.
    pub id: String,
    /// Where it answers the new server.
    pub url: String,
    /// What the new server shows there.
    pub key: String,
    /// Its sockets, in the order of their descriptors.
    pub(crate) sockets: Vec<OfferedSocket>,
}

impl Offer {
    /// An offer of nothing yet.
    pub const fn new(id: String, url: String, key: String) -> Self {
        Self {
            id,
            url,
            key,
            sockets: Vec::new(),
        }
    }
}

/// A socket of an [`Offer`].
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct OfferedSocket {
    pub(crate) name: SocketName,
    /// Whether a second descriptor follows: where datagrams for the former server are passed on.
    pub(crate) feed: bool,
}

/// The new server serves.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Ready {
    /// Those that it has taken; the former server goes on with the others.
    pub(crate) taken: Vec<SocketName>,
}

/// What the former server still does, again and again until it has ended.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct State {
    /// The rooms in which somebody is.
    pub rooms: Vec<String>,
}

/// Sends a line, with descriptors.
pub(crate) async fn send(
    stream: &UnixStream,
    message: &impl Serialize,
    descriptors: &[BorrowedFd<'_>],
) -> io::Result<()> {
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    let (mut rest, mut descriptors) = (line.as_slice(), descriptors);
    while !rest.is_empty() {
        let sent = stream
            .async_io(Interest::WRITABLE, || {
                let mut space =
                    [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
                let mut control = SendAncillaryBuffer::new(&mut space);
                let fits = descriptors.is_empty()
                    || control.push(SendAncillaryMessage::ScmRights(descriptors));
                if !fits {
                    return Err(io::Error::other("too many sockets"));
                }
                let parts = [IoSlice::new(rest)];
                Ok(sendmsg(stream, &parts, &mut control, SendFlags::NOSIGNAL)?)
            })
            .await?;
        rest = rest.get(sent..).unwrap_or_default();
        descriptors = &[];
    }
    Ok(())
}

/// What one side has said and the other not read yet.
#[derive(Debug, Default)]
pub(crate) struct Reader {
    bytes: Vec<u8>,
    descriptors: Vec<OwnedFd>,
}

impl Reader {
    /// Waits for the next line, and returns it with the descriptors that came until then.
    pub(crate) async fn next<T: DeserializeOwned>(
        &mut self,
        stream: &UnixStream,
    ) -> io::Result<(T, Vec<OwnedFd>)> {
        let end = loop {
            if let Some(end) = self.bytes.iter().position(|byte| *byte == b'\n') {
                break end;
            }
            if self.bytes.len() > MAX_LINE_BYTES {
                return Err(io::Error::new(
                    io::ErrorKind::InvalidData,
                    "too long a line",
                ));
            }
            self.read(stream).await?;
        };
        let line: Vec<u8> = self.bytes.drain(..=end).collect();
        let message = serde_json::from_slice(&line)?;
        Ok((message, std::mem::take(&mut self.descriptors)))
    }

    async fn read(&mut self, stream: &UnixStream) -> io::Result<()> {
        let (bytes, descriptors) = (&mut self.bytes, &mut self.descriptors);
        stream
            .async_io(Interest::READABLE, || {
                let mut space =
                    [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
                let mut control = RecvAncillaryBuffer::new(&mut space);
                let mut buffer = [0; 4096];
                let received = recvmsg(
                    stream,
                    &mut [IoSliceMut::new(&mut buffer)],
                    &mut control,
                    RecvFlags::CMSG_CLOEXEC,
                )?;
                for message in control.drain() {
                    if let RecvAncillaryMessage::ScmRights(rights) = message {
                        descriptors.extend(rights);
                    }
                }
                if received.bytes == 0 {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
                bytes.extend(buffer.get(..received.bytes).unwrap_or_default());
                Ok(())
            })
            .await
    }
}
