//! stub
use super::AudioFormat;
use bytes::Bytes;
/// stub
#[derive(Debug, thiserror::Error)]
#[error("x")]
pub struct ConvertError;
/// stub
pub struct Converter;
#[allow(missing_docs, clippy::unused_async)]
impl Converter {
    pub fn new(_: AudioFormat, _: AudioFormat, _: f64) -> Result<Self, ConvertError> {
        Ok(Self)
    }
    pub async fn push(&mut self, _: &[u8]) -> Result<Bytes, ConvertError> {
        Ok(Bytes::new())
    }
    pub async fn finish(self) -> Result<Bytes, ConvertError> {
        Ok(Bytes::new())
    }
}
