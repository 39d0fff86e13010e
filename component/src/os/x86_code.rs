//! Instructions in the code of an object that read the processor's counter (rdtsc, rdtscp) or draw
//! from its generator of random numbers (rdrand, rdseed).
//!
//! Source: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2, chapter 2 and
//! appendix A (lengths of instructions).
//!
//! Their bytes also occur inside of other instructions, 0F 31 about once in 64 KB. So the
//! instructions before such a place are measured, from many starts: whatever the start, the walk
//! soon meets the boundaries of the true instructions. A place is taken for an instruction if
//! nearly all walks meet it, and if what follows can be code. Data between code may be mistaken all
//! the same: this is for a note to the user, and for nothing else.

/// Walks begin so many bytes before the place, each a byte after the other.
const WALK_BYTES: usize = 128;
const WALKS: usize = 32;
/// Of so many walks one may miss the place.
const ONE_MAY_MISS: usize = 8;
/// So many instructions behind the place must be such.
const FOLLOWING: usize = 8;

/// What was found.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Found {
    /// The counter is read.
    pub counter: bool,
    /// Random numbers are drawn.
    pub random: bool,
}

impl Found {
    /// Anything?
    pub fn any(self) -> bool {
        self.counter || self.random
    }

    /// Both.
    pub fn with(self, other: Self) -> Self {
        Self { counter: self.counter || other.counter, random: self.random || other.random }
    }
}

/// What the two or three bytes at the begin would be as an instruction behind its prefixes.
fn kind(code: &[u8]) -> Found {
    match *code {
        [0x0F, 0x31, ..] | [0x0F, 0x01, 0xF9, ..] => Found { counter: true, random: false },
        [0x0F, 0xC7, 0xF0..=0xFF, ..] => Found { counter: false, random: true },
        _ => Found::default(),
    }
}

/// Looks through the code of an object.
pub fn find(code: &[u8]) -> Found {
    let mut found = Found::default();
    for (at, _) in code.iter().enumerate().filter(|(_, byte)| **byte == 0x0F) {
        let here = kind(&code[at..]);
        if here.any() && found.with(here) != found && is_instruction(code, at) {
            found = found.with(here);
        }
    }
    found
}

fn is_prefix(byte: u8) -> bool {
    matches!(byte, 0x66 | 0xF2 | 0xF3 | 0x40..=0x4F)
}

/// Do instructions begin, or end their prefixes, at this place?
fn is_instruction(code: &[u8], at: usize) -> bool {
    let begin = at.saturating_sub(WALK_BYTES);
    let starts = begin..at.min(begin + WALKS).max(begin + 1);
    let walks = starts.len();
    let missed = starts.filter(|start| !meets(code, *start, at)).count();
    let mut next = at;
    let mut is_code = |_| {
        let length = length(&code[next..]);
        next += length.unwrap_or(0);
        length.is_some() || next + 15 > code.len()
    };
    missed * ONE_MAY_MISS <= walks && (0..FOLLOWING).all(&mut is_code)
}

/// Does a walk from `start` meet `at`? What is no instruction is skipped.
fn meets(code: &[u8], start: usize, at: usize) -> bool {
    let mut here = start;
    while here < at {
        if code[here..at].iter().all(|byte| is_prefix(*byte)) {
            return true;
        }
        here += length(&code[here..]).unwrap_or(1);
    }
    here == at
}

/// What follows an opcode.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Operands {
    /// Nothing, or so many bytes.
    Bytes(u8),
    /// Four bytes, two with a prefix; eight if the instruction has room for all of a register.
    Word,
    WordOrLong,
    /// A byte that names registers and memory, and after that so many bytes.
    Memory(u8),
    MemoryWord,
    /// The same; the instruction has a byte, or a word, only if its number is 0 or 1.
    MemoryTest(bool),
    /// There is no such instruction.
    None,
}

/// Of opcodes of one byte.
fn operands(opcode: u8) -> Operands {
    use Operands::*;
    match opcode {
        0x00..=0x3F => match opcode & 7 {
            0..=3 => Memory(0),
            4 => Bytes(1),
            5 => Word,
            _ => None,
        },
        0x60..=0x62 | 0x82 | 0x9A | 0xCE | 0xD4..=0xD6 | 0xEA => None,
        0x68 | 0xA9 => Word,
        0x69 | 0x81 | 0xC7 => MemoryWord,
        0x6B | 0x80 | 0x83 | 0xC0 | 0xC1 | 0xC6 => Memory(1),
        0x63 | 0x84..=0x8F | 0xD0..=0xD3 | 0xD8..=0xDF | 0xFE | 0xFF => Memory(0),
        0x6A | 0x70..=0x7F | 0xA8 | 0xB0..=0xB7 | 0xCD | 0xE0..=0xE7 | 0xEB => Bytes(1),
        0xA0..=0xA3 => Bytes(8),
        0xB8..=0xBF => WordOrLong,
        0xC2 | 0xCA => Bytes(2),
        0xC8 => Bytes(3),
        0xE8 | 0xE9 => Bytes(4),
        0xF6 => MemoryTest(false),
        0xF7 => MemoryTest(true),
        _ => Bytes(0),
    }
}

/// Of opcodes behind 0F.
fn operands_0f(opcode: u8) -> Operands {
    use Operands::*;
    match opcode {
        0x04 | 0x0A | 0x0C | 0x24..=0x27 | 0x36 | 0x39 | 0x3B..=0x3F => None,
        0x05..=0x09 | 0x0B | 0x0E | 0x30..=0x35 | 0x37 | 0x77 => Bytes(0),
        0xA0..=0xA2 | 0xA8..=0xAA | 0xC8..=0xCF => Bytes(0),
        0x80..=0x8F => Bytes(4),
        0x0F | 0x70..=0x73 | 0xA4 | 0xAC | 0xBA | 0xC2 | 0xC4..=0xC6 => Memory(1),
        _ => Memory(0),
    }
}

/// Of those of a map that VEX and EVEX name.
fn operands_of_map(map: u8, opcode: u8) -> Operands {
    match (map, opcode) {
        (1, 0x77) => Operands::Bytes(0),
        (1, 0x70..=0x73 | 0xC2 | 0xC4..=0xC6) | (3, _) | (8, _) => Operands::Memory(1),
        (1 | 2 | 5 | 6 | 9, _) => Operands::Memory(0),
        (10, _) => Operands::Memory(4),
        _ => Operands::None,
    }
}

/// Bytes of the registers and memory that the bytes at the begin name.
fn memory(code: &[u8]) -> Option<usize> {
    let byte = *code.first()?;
    let (kind, base) = (byte >> 6, byte & 7);
    if kind == 3 {
        return Some(1);
    }
    let has_index = base == 4;
    let base = if has_index { *code.get(1)? & 7 } else { base };
    let moved = match kind {
        0 if base == 5 => 4,
        0 => 0,
        1 => 1,
        _ => 4,
    };
    Some(1 + usize::from(has_index) + moved)
}

/// How long the instruction at the begin is, if it is one.
fn length(code: &[u8]) -> Option<usize> {
    let (mut at, mut short, mut wide) = (0, false, false);
    while let 0x66 | 0x67 | 0xF0 | 0xF2 | 0xF3 | 0x2E | 0x36 | 0x3E | 0x26 | 0x64 | 0x65 =
        *code.get(at)?
    {
        short |= code[at] == 0x66;
        at += 1;
    }
    if let 0x40..=0x4F = *code.get(at)? {
        wide = code[at] & 8 != 0;
        at += 1;
    }
    let opcode = *code.get(at)?;
    let next = code.get(at + 1).copied();
    // Others are pop.
    let is_xop = opcode == 0x8F && next.is_some_and(|byte| byte & 0x1F >= 8);
    let operands = match opcode {
        0xC5 => {
            at += 3;
            operands_of_map(1, *code.get(at - 1)?)
        }
        0xC4 | 0x8F if opcode == 0xC4 || is_xop => {
            at += 4;
            operands_of_map(next? & 0x1F, *code.get(at - 1)?)
        }
        0x62 => {
            at += 5;
            operands_of_map(next? & 7, *code.get(at - 1)?)
        }
        0x0F => {
            at += 2;
            match next? {
                0x38 => {
                    at += 1;
                    Operands::Memory(0)
                }
                0x3A => {
                    at += 1;
                    Operands::Memory(1)
                }
                opcode => operands_0f(opcode),
            }
        }
        _ => {
            at += 1;
            operands(opcode)
        }
    };
    let word = if short && !wide { 2 } else { 4 };
    let rest = code.get(at..)?;
    at += match operands {
        Operands::None => return None,
        Operands::Bytes(bytes) => bytes.into(),
        Operands::Word => word,
        Operands::WordOrLong if wide => 8,
        Operands::WordOrLong => word,
        Operands::Memory(bytes) => memory(rest)? + usize::from(bytes),
        Operands::MemoryWord => memory(rest)? + word,
        Operands::MemoryTest(_) if *rest.first()? >> 3 & 7 >= 2 => memory(rest)?,
        Operands::MemoryTest(false) => memory(rest)? + 1,
        Operands::MemoryTest(true) => memory(rest)? + word,
    };
    (at <= 15 && at <= code.len()).then_some(at)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Instructions of all shapes, as GNU as writes them.
    const SHAPES: [&[u8]; 26] = [
        &[0x55],
        &[0x48, 0x89, 0xE5],
        &[0x48, 0x83, 0xEC, 0x18],
        &[0x48, 0x8B, 0x05, 1, 2, 3, 4],
        &[0x48, 0x8B, 0x84, 0x24, 0x0F, 0x31, 0, 0],
        &[0xC7, 0x44, 0x24, 8, 0x0F, 0x31, 0, 0],
        &[0x66, 0xC7, 0x00, 0x0F, 0x31],
        &[0x48, 0xB8, 1, 2, 3, 0x0F, 0x31, 6, 7, 8],
        &[0x66, 0xB8, 0x0F, 0x31],
        &[0xE8, 0x0F, 0x31, 0, 0],
        &[0x0F, 0x84, 0x0F, 0x31, 0, 0],
        &[0xF6, 0x45, 4, 1],
        &[0xF7, 0xD8],
        &[0xF7, 0xC7, 0x0F, 0x31, 0, 0],
        &[0x48, 0x8D, 0x04, 0x25, 0x0F, 0xC7, 0xF0, 0],
        &[0xC5, 0xF8, 0x77],
        &[0xC5, 0xFD, 0x6F, 0x04, 0x24],
        &[0xC4, 0xE3, 0x7D, 0x19, 0xC1, 1],
        &[0xC4, 0xE2, 0x71, 0xF7, 0xC0],
        &[0x62, 0xF1, 0x7C, 0x48, 0x10, 0x04, 0x24],
        &[0x66, 0x0F, 0x3A, 0x0F, 0xC1, 8],
        &[0x66, 0x0F, 0x38, 0x00, 0xC1],
        &[0x66, 0x2E, 0x0F, 0x1F, 0x84, 0, 0, 0, 0, 0],
        &[0xF3, 0x48, 0x0F, 0xB8, 0xC0],
        &[0x8F, 0x44, 0x24, 8],
        &[0xC3],
    ];

    #[test]
    fn lengths_are_those_of_the_assembler() {
        for shape in SHAPES {
            let code = [shape, &[0x90; 15]].concat();
            assert_eq!(length(&code), Some(shape.len()), "{shape:02X?}");
            for cut in 0..shape.len() {
                assert_eq!(length(&shape[..cut]), None, "{shape:02X?} cut to {cut}");
            }
        }
        assert_eq!(length(&[0x06, 0x90]), None);
        assert_eq!(length(&[0x66; 20]), None);
    }

    /// Much code without any of them, though with their bytes inside of others; then one.
    fn with(instruction: &[u8]) -> Vec<u8> {
        let mut code = Vec::new();
        let mut next = 1usize;
        for round in 0..400 {
            next = next.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695);
            code.extend(SHAPES[(next >> 33) % SHAPES.len()]);
            if round == 200 {
                code.extend(instruction);
            }
        }
        code
    }

    #[test]
    fn instructions_are_found_and_their_bytes_in_others_are_not() {
        let (counter, random) = (true, true);
        assert_eq!(find(&with(&[])), Found::default());
        let only_counter = Found { counter, random: false };
        assert_eq!(find(&with(&[0x0F, 0x31])), only_counter);
        assert_eq!(find(&with(&[0x0F, 0x01, 0xF9])), only_counter);
        let only_random = Found { counter: false, random };
        // rdrand eax, rdseed r9.
        assert_eq!(find(&with(&[0x0F, 0xC7, 0xF0])), only_random);
        assert_eq!(find(&with(&[0x49, 0x0F, 0xC7, 0xF9])), only_random);
        let both = [0x48, 0x0F, 0xC7, 0xF0, 0x0F, 0x31];
        assert_eq!(find(&with(&both)), Found { counter, random });
        // At the begin and at the end.
        assert_eq!(find(&[0x0F, 0x31]), only_counter);
        assert_eq!(find(&[0x0F]), Found::default());
        // cmpxchg16b and rdpid.
        assert_eq!(find(&with(&[0x48, 0x0F, 0xC7, 0x0F])), Found::default());
    }
}
