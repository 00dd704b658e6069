//! Protobuf and JSON of others, looked through before they are decoded: two bytes on the wire become hundreds in memory
//! when they are an empty message in a list. [`check`] walks the bytes with the [`Shape`] that a message may have and
//! counts what repeats; it allocates nothing. The shapes of the messages that come in are in [`super::shapes`].

/// What a message may hold. Fields that are not named here may be there, within the [`Budget`].
#[derive(Debug, Clone, Copy)]
pub struct Shape(pub &'static [(u32, &'static str, Field)]);

/// What a field may hold.
#[derive(Debug, Clone, Copy)]
pub enum Field {
    /// So many texts, byte strings or numbers, each so many bytes long.
    Plain(usize, usize),
    /// So many messages.
    Message(usize, &'static Shape),
}

/// Fields of one shape at most.
const MOST_FIELDS: usize = 32;
/// What a message may hold in all, with the messages in it.
#[derive(Debug, Clone, Copy)]
pub struct Budget {
    /// Fields, whatever they are.
    pub fields: usize,
    /// Bytes of fields that no shape names: newer clients say more than we know.
    pub unnamed_bytes: usize,
}

impl Budget {
    /// Of a message of a client.
    pub const OF_A_CLIENT: Self = Self {
        fields: 16_384,
        unnamed_bytes: 64 << 10,
    };
    /// Of a message of a server that tells us of rooms of thousands.
    pub const OF_A_SERVER: Self = Self {
        fields: 262_144,
        unnamed_bytes: 4 << 20,
    };

    fn spend(&mut self, fields: usize, unnamed_bytes: usize) -> Result<(), Excess> {
        let spent = |had: usize, cost| had.checked_sub(cost).ok_or(Excess::Many);
        self.fields = spent(self.fields, fields)?;
        self.unnamed_bytes = spent(self.unnamed_bytes, unnamed_bytes)?;
        Ok(())
    }
}
/// Values of a JSON text: members, elements and what holds them.
pub const MOST_JSON_VALUES: usize = 16_384;
/// How deep they may be nested.
const MOST_JSON_DEPTH: usize = 32;

/// Why a message is not decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Excess {
    /// A field comes too often.
    #[error("{0} is there more than {1} times")]
    Often(&'static str, usize),
    /// A field is too long.
    #[error("{0} is longer than {1} bytes")]
    Long(&'static str, usize),
    /// There is too much in all.
    #[error("the message holds too many fields")]
    Many,
    /// It is nested too deeply.
    #[error("the message is nested too deeply")]
    Deep,
    /// These bytes are no message.
    #[error("the message cannot be read")]
    Malformed,
}

/// Whether a message has the shape that it may have.
pub fn check(bytes: &[u8], shape: &Shape, mut budget: Budget) -> Result<(), Excess> {
    walk(bytes, shape, &mut budget)
}

/// One message. Goes as deep as the shapes are nested, which none is in itself.
fn walk(mut bytes: &[u8], shape: &Shape, budget: &mut Budget) -> Result<(), Excess> {
    let mut counts = [0usize; MOST_FIELDS];
    while !bytes.is_empty() {
        let key = varint(&mut bytes)?;
        let number = u32::try_from(key >> 3).map_err(|_| Excess::Malformed)?;
        let value: &[u8] = match key & 7 {
            0 => {
                varint(&mut bytes)?;
                &[]
            }
            1 => take(&mut bytes, 8)?,
            2 => {
                let length = varint(&mut bytes)?;
                let length = usize::try_from(length).map_err(|_| Excess::Malformed)?;
                take(&mut bytes, length)?
            }
            5 => take(&mut bytes, 4)?,
            // Groups, which nobody has used since protobuf 2, and what is not defined.
            _ => return Err(Excess::Malformed),
        };
        budget.spend(1, 0)?;
        let place = shape.0.iter().position(|(named, ..)| *named == number);
        let named = place.and_then(|at| Some((shape.0.get(at)?, counts.get_mut(at)?)));
        let Some(((_, name, field), count)) = named else {
            budget.spend(0, value.len())?;
            continue;
        };
        *count += 1;
        match field {
            Field::Plain(most, _) | Field::Message(most, _) if *count > *most => {
                return Err(Excess::Often(name, *most));
            }
            Field::Plain(_, longest) if value.len() > *longest => {
                return Err(Excess::Long(name, *longest));
            }
            Field::Plain(..) => {}
            Field::Message(_, inner) => walk(value, inner, budget)?,
        }
    }
    Ok(())
}

fn take<'a>(bytes: &mut &'a [u8], length: usize) -> Result<&'a [u8], Excess> {
    let (taken, rest) = bytes.split_at_checked(length).ok_or(Excess::Malformed)?;
    *bytes = rest;
    Ok(taken)
}

fn varint(bytes: &mut &[u8]) -> Result<u64, Excess> {
    let mut value = 0;
    for shift in (0..70).step_by(7) {
        let (byte, rest) = bytes.split_first().ok_or(Excess::Malformed)?;
        *bytes = rest;
        value |= u64::from(byte & 0x7F).checked_shl(shift).unwrap_or(0);
        if byte & 0x80 == 0 {
            return Ok(value);
        }
    }
    Err(Excess::Malformed)
}

/// Whether a JSON text holds a reasonable number of values, none too deep. Whether it is JSON is its reader's to say.
pub fn check_json(text: &[u8]) -> Result<(), Excess> {
    let (mut values, mut depth, mut quoted, mut escaped) = (0usize, 0usize, false, false);
    for byte in text {
        if quoted {
            quoted = escaped || *byte != b'"';
            escaped = !escaped && *byte == b'\\';
            continue;
        }
        match byte {
            b'"' => quoted = true,
            b'{' | b'[' => {
                (values, depth) = (values + 1, depth + 1);
                if depth > MOST_JSON_DEPTH {
                    return Err(Excess::Deep);
                }
            }
            b'}' | b']' => depth = depth.saturating_sub(1),
            b',' => values += 1,
            _ => {}
        }
        if values > MOST_JSON_VALUES {
            return Err(Excess::Many);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEAF: Shape = Shape(&[(1, "leaf", Field::Plain(2, 3))]);
    const TREE: Shape = Shape(&[
        (1, "leaves", Field::Message(2, &LEAF)),
        (2, "name", Field::Plain(1, 4)),
    ]);

    fn check(bytes: &[u8], shape: &Shape) -> Result<(), Excess> {
        super::check(bytes, shape, Budget::OF_A_CLIENT)
    }

    #[test]
    fn what_repeats_is_counted_in_each_message_by_itself() {
        // Two leaves of two texts each.
        let good = [0x0A, 4, 0x0A, 0, 0x0A, 0, 0x0A, 4, 0x0A, 0, 0x0A, 0];
        assert_eq!(check(&good, &TREE), Ok(()));
        let third_leaf = [&good[..], &[0x0A, 0]].concat();
        assert_eq!(check(&third_leaf, &TREE), Err(Excess::Often("leaves", 2)));
        let third_text = [0x0A, 6, 0x0A, 0, 0x0A, 0, 0x0A, 0];
        assert_eq!(check(&third_text, &TREE), Err(Excess::Often("leaf", 2)));
    }

    #[test]
    fn what_is_long_is_refused_by_its_name() {
        assert_eq!(check(&[0x12, 4, 1, 2, 3, 4], &TREE), Ok(()));
        let long = [0x12, 5, 1, 2, 3, 4, 5];
        assert_eq!(check(&long, &TREE), Err(Excess::Long("name", 4)));
    }

    #[test]
    fn what_is_not_named_is_passed_over_up_to_a_bound() {
        let mut unknown = vec![0x7A, 0xFF, 0xFF, 0x03];
        unknown.resize(4 + 0xFFFF, 0);
        assert_eq!(check(&unknown, &TREE), Ok(()));
        unknown.extend([0x7A, 2, 0, 0]);
        assert_eq!(check(&unknown, &TREE), Err(Excess::Many));
        assert_eq!(check(&[0x78, 1].repeat(70_000), &TREE), Err(Excess::Many));
    }

    #[test]
    fn what_is_no_message_is_refused() {
        for broken in [&[0x0A][..], &[0x0A, 9], &[0x0B], &[0x80; 11], &[0x09, 1]] {
            assert_eq!(check(broken, &TREE), Err(Excess::Malformed), "{broken:?}");
        }
    }

    #[test]
    fn json_is_counted_outside_of_its_texts() {
        assert_eq!(check_json(br#"{"a": "[[[{,\",", "b": [1, 2]}"#), Ok(()));
        let empties = format!("[{}]", "{},".repeat(MOST_JSON_VALUES));
        assert_eq!(check_json(empties.as_bytes()), Err(Excess::Many));
        assert_eq!(check_json("[".repeat(40).as_bytes()), Err(Excess::Deep));
        let text = format!("\"{}\"", ",".repeat(1 << 20));
        assert_eq!(check_json(text.as_bytes()), Ok(()));
    }
}
