//! Reads weights in CTranslate2's layout (`model.bin`, version 6): named tensors of 16-bit or 32-bit floats, or of bytes
//! with a scale for each row. Lengths are checked against the file before anything is allocated.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::worker::SpeechError;

/// The newest version of the layout that is known.
const VERSION: u32 = 6;
/// More tensors than any Whisper has.
const MAX_TENSORS: u32 = 10_000;

/// How numbers are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Numbers {
    F32,
    I8,
    I16,
    F16,
    Other,
}

impl Numbers {
    const fn of(code: u8) -> Self {
        match code {
            0 => Self::F32,
            1 => Self::I8,
            2 => Self::I16,
            4 => Self::F16,
            _ => Self::Other,
        }
    }

    const fn bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::I8 | Self::Other => 1,
            Self::I16 | Self::F16 => 2,
        }
    }
}

/// Where a tensor is in the file.
#[derive(Debug, Clone)]
struct Place {
    shape: Vec<usize>,
    numbers: Numbers,
    offset: u64,
    length: usize,
}

/// The tensors of a file, read when asked for.
#[derive(Debug)]
pub struct Weights {
    name: String,
    file: File,
    places: BTreeMap<String, Place>,
}

/// Reads the layout's integers and strings.
struct Reader<'f> {
    file: &'f File,
    at: u64,
    end: u64,
}

impl Reader<'_> {
    fn bytes<const N: usize>(&mut self) -> Option<[u8; N]> {
        let mut bytes = [0; N];
        self.skip(N as u64)?;
        self.file
            .read_exact_at(&mut bytes, self.at - N as u64)
            .ok()?;
        Some(bytes)
    }

    fn skip(&mut self, length: u64) -> Option<()> {
        self.at = self.at.checked_add(length)?;
        (self.at <= self.end).then_some(())
    }

    fn u32(&mut self) -> Option<u32> {
        Some(u32::from_le_bytes(self.bytes()?))
    }

    /// Preceded by its length in 16 bits, which counts a zero at its end.
    fn string(&mut self) -> Option<String> {
        let length = u16::from_le_bytes(self.bytes()?);
        let begin = self.at;
        self.skip(length.into())?;
        let mut bytes = vec![0; length.into()];
        self.file.read_exact_at(&mut bytes, begin).ok()?;
        bytes.pop();
        String::from_utf8(bytes).ok()
    }

    fn place(&mut self) -> Option<(String, Place)> {
        let name = self.string()?;
        let [rank] = self.bytes()?;
        let mut shape = Vec::new();
        for _ in 0..rank {
            shape.push(self.u32()? as usize);
        }
        let [code] = self.bytes()?;
        let numbers = Numbers::of(code);
        let length = self.u32()? as usize;
        let expected = shape.iter().try_fold(numbers.bytes(), |product, &length| {
            product.checked_mul(length)
        })?;
        if numbers != Numbers::Other && expected != length {
            return None;
        }
        let offset = self.at;
        self.skip(length as u64)?;
        let place = Place {
            shape,
            numbers,
            offset,
            length,
        };
        Some((name, place))
    }
}

impl Weights {
    /// Opens a file and finds its tensors.
    pub fn open(path: &Path) -> Result<Self, SpeechError> {
        let failed = |cause: &str| SpeechError::File {
            file: path.display().to_string(),
            cause: cause.to_owned(),
        };
        let file = File::open(path).map_err(|error| failed(&error.to_string()))?;
        let end = file
            .metadata()
            .map_err(|error| failed(&error.to_string()))?
            .len();
        let mut reader = Reader {
            file: &file,
            at: 0,
            end,
        };
        let foreign = || failed("these are not the weights of a Whisper in CTranslate2's layout");
        if reader.u32() != Some(VERSION) || reader.string().as_deref() != Some("WhisperSpec") {
            return Err(foreign());
        }
        let _revision = reader.u32();
        let count = reader.u32().filter(|&count| count <= MAX_TENSORS);
        let mut places = BTreeMap::new();
        for _ in 0..count.ok_or_else(foreign)? {
            let (name, place) = reader.place().ok_or_else(|| failed("it is truncated"))?;
            places.insert(name, place);
        }
        Ok(Self {
            name: path.display().to_string(),
            file,
            places,
        })
    }

    fn place(&self, name: &str) -> Result<&Place, SpeechError> {
        self.places
            .get(name)
            .ok_or_else(|| self.error(format!("it has no {name:?}")))
    }

    fn error(&self, cause: String) -> SpeechError {
        SpeechError::File {
            file: self.name.clone(),
            cause,
        }
    }

    /// Whether there is such a tensor.
    pub fn has(&self, name: &str) -> bool {
        self.places.contains_key(name)
    }

    /// The shape of a tensor of two axes.
    pub fn matrix_shape(&self, name: &str) -> Result<(usize, usize), SpeechError> {
        match self.place(name)?.shape[..] {
            [rows, columns] => Ok((rows, columns)),
            _ => Err(self.error(format!("{name:?} is no matrix"))),
        }
    }

    /// A whole number.
    pub fn number(&self, name: &str) -> Result<usize, SpeechError> {
        let place = self.place(name)?;
        let bytes = self.read(place.offset, place.length.min(8))?;
        Ok(match bytes[..] {
            [low] => low.into(),
            [low, high] => u16::from_le_bytes([low, high]).into(),
            _ => return Err(self.error(format!("{name:?} is no number"))),
        })
    }

    /// The numbers of a tensor of this shape.
    pub fn tensor(&self, name: &str, shape: &[usize]) -> Result<Vec<f32>, SpeechError> {
        let place = self.place(name)?;
        if place.shape != shape {
            return Err(self.error(format!("{name:?} is {:?} and not {shape:?}", place.shape)));
        }
        let columns = shape.last().copied().unwrap_or(1).max(1);
        let scales = self.scales(name, place)?;
        let bytes = self.read(place.offset, place.length)?;
        let mut numbers = floats(&bytes, place.numbers);
        if let Some(scales) = scales {
            for (row, scale) in numbers.chunks_mut(columns).zip(scales) {
                row.iter_mut().for_each(|x| *x /= scale);
            }
        }
        Ok(numbers)
    }

    /// One row of a matrix.
    pub fn row(&self, name: &str, row: usize) -> Result<Vec<f32>, SpeechError> {
        let place = self.place(name)?;
        let (rows, columns) = self.matrix_shape(name)?;
        if row >= rows {
            return Err(self.error(format!("{name:?} has no row {row}")));
        }
        let length = columns * place.numbers.bytes();
        let bytes = self.read(place.offset + (row * length) as u64, length)?;
        let mut numbers = floats(&bytes, place.numbers);
        if let Some(scale) = self
            .scales(name, place)?
            .and_then(|scales| scales.get(row).copied())
        {
            numbers.iter_mut().for_each(|x| *x /= scale);
        }
        Ok(numbers)
    }

    /// What the rows of a tensor of bytes were multiplied by.
    fn scales(&self, name: &str, place: &Place) -> Result<Option<Vec<f32>>, SpeechError> {
        match place.numbers {
            Numbers::F32 | Numbers::F16 => Ok(None),
            Numbers::I8 => {
                let scales = self.place(&format!("{name}_scale"))?;
                let bytes = self.read(scales.offset, scales.length)?;
                Ok(Some(floats(&bytes, scales.numbers)))
            }
            Numbers::I16 | Numbers::Other => {
                Err(self.error(format!("{name:?} is stored in a way that is not known")))
            }
        }
    }

    fn read(&self, offset: u64, length: usize) -> Result<Vec<u8>, SpeechError> {
        let mut bytes = vec![0; length];
        self.file
            .read_exact_at(&mut bytes, offset)
            .map_err(|error| self.error(error.to_string()))?;
        Ok(bytes)
    }
}

fn floats(bytes: &[u8], numbers: Numbers) -> Vec<f32> {
    match numbers {
        Numbers::F32 => {
            let (numbers, _) = bytes.as_chunks();
            numbers.iter().map(|&b| f32::from_le_bytes(b)).collect()
        }
        Numbers::F16 => {
            let (numbers, _) = bytes.as_chunks();
            numbers
                .iter()
                .map(|&b| half(u16::from_le_bytes(b)))
                .collect()
        }
        Numbers::I8 => bytes.iter().map(|&b| f32::from(b.cast_signed())).collect(),
        Numbers::I16 | Numbers::Other => Vec::new(),
    }
}

/// A number of 16 bits (IEEE 754 binary16).
fn half(bits: u16) -> f32 {
    let sign = u32::from(bits & 0x8000) << 16;
    let exponent = u32::from(bits >> 10) & 0x1f;
    let fraction = u32::from(bits & 0x3ff);
    match (exponent, fraction) {
        // Subnormal: the fraction counts 2⁻²⁴.
        (0, _) => {
            let magnitude = fraction as f32 * 2f32.powi(-24);
            f32::from_bits(sign | magnitude.to_bits())
        }
        (0x1f, _) => f32::from_bits(sign | 0x7f80_0000 | (fraction << 13)),
        _ => f32::from_bits(sign | ((exponent + 112) << 23) | (fraction << 13)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    #[test]
    fn halves_are_what_they_say() {
        for (bits, is) in [
            (0x0000, 0.0),
            (0x3c00, 1.0),
            (0xc000, -2.0),
            (0x3555, 0.333_251_95),
            (0x7bff, 65504.0),
            (0x0001, 2f32.powi(-24)),
        ] {
            assert!((half(bits) - is).abs() <= f32::EPSILON * is.abs());
        }
        assert!(half(0x7c00).is_infinite() && half(0x7e00).is_nan());
    }

    #[test]
    fn a_file_cut_anywhere_is_an_error_and_no_panic() {
        let whole = std::fs::read(testing::model("whisper-tiny.en/model.bin")).unwrap();
        let folder = std::env::temp_dir().join(format!("whisper-weights-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let file = folder.join("model.bin");
        for length in [0, 3, 4, 17, 40, 300, 70_000_000] {
            std::fs::write(&file, &whole[..length]).unwrap();
            let refused = Weights::open(&file).unwrap_err().to_string();
            assert!(refused.contains("model.bin"), "{refused}");
        }
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
