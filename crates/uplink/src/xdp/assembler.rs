//! BPF instructions (Linux, Documentation/bpf/standardization/instruction-set.rst), and jumps to
//! places that come later.

/// One instruction as the kernel takes it (`struct bpf_insn`).
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Instruction {
    code: u8,
    registers: u8,
    offset: i16,
    immediate: i32,
}

/// A register, R0 to R9.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Register(u8);

/// R0: a function's result, and the program's.
pub const R0: Register = Register(0);
/// R1 to R5: a function's arguments. A call destroys them.
pub const R1: Register = Register(1);
/// See [`R1`].
pub const R2: Register = Register(2);
/// See [`R1`].
pub const R3: Register = Register(3);
/// See [`R1`].
pub const R4: Register = Register(4);
/// See [`R1`].
pub const R5: Register = Register(5);
/// R6 to R9 survive calls.
pub const R6: Register = Register(6);
/// See [`R6`].
pub const R7: Register = Register(7);
/// See [`R6`].
pub const R8: Register = Register(8);
pub const R9: Register = Register(9);

/// Number of bytes that a load takes; the upper ones of the register become zero.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Size {
    /// 1 byte.
    Byte,
    /// 2 bytes, in the host's order.
    Half,
    /// 4 bytes, in the host's order.
    Word,
}

/// Condition on which a jump is taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Condition {
    /// Equal.
    Equal,
    /// Not equal.
    NotEqual,
    /// Below, without sign.
    Below,
    /// Some bits of the operand are set.
    AnyOf,
}

/// A place to jump to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Label(usize);

/// A program in the making.
#[derive(Default, Debug)]
pub struct Assembler {
    code: Vec<Instruction>,
    /// Place of each label, once that is known.
    places: Vec<Option<usize>>,
    /// Jumps and their labels.
    jumps: Vec<(usize, Label)>,
}

impl Assembler {
    /// A place that [`Self::place`] decides on later.
    pub fn label(&mut self) -> Label {
        self.places.push(None);
        Label(self.places.len() - 1)
    }

    /// The label is here.
    pub fn place(&mut self, label: Label) {
        let here = self.code.len();
        if let Some(place) = self.places.get_mut(label.0) {
            *place = Some(here);
        }
    }

    /// `to = *(from + offset)`.
    pub fn load(&mut self, size: Size, to: Register, from: Register, offset: i16) {
        let code = match size {
            Size::Word => 0x61,
            Size::Half => 0x69,
            Size::Byte => 0x71,
        };
        self.push(code, to, from, offset, 0);
    }

    /// `to = from`.
    pub fn copy(&mut self, to: Register, from: Register) {
        self.push(0xbf, to, from, 0, 0);
    }

    /// `to = value`.
    pub fn set(&mut self, to: Register, value: i32) {
        self.push(0xb7, to, R0, 0, value);
    }

    /// `to += value`.
    pub fn add(&mut self, to: Register, value: i32) {
        self.push(0x07, to, R0, 0, value);
    }

    /// `to += from`.
    pub fn add_register(&mut self, to: Register, from: Register) {
        self.push(0x0f, to, from, 0, 0);
    }

    /// `to &= value`.
    pub fn and(&mut self, to: Register, value: i32) {
        self.push(0x57, to, R0, 0, value);
    }

    /// `to <<= bits`.
    pub fn shift_left(&mut self, to: Register, bits: i32) {
        self.push(0x67, to, R0, 0, bits);
    }

    /// `to =` the map behind a descriptor.
    pub fn map(&mut self, to: Register, fd: i32) {
        // BPF_PSEUDO_MAP_FD stands where the source register would.
        self.push(0x18, to, Register(1), 0, fd);
        self.push(0, R0, R0, 0, 0);
    }

    /// `if (the lower 32 bits of left) condition right goto label`.
    pub fn jump_if(&mut self, left: Register, condition: Condition, right: i32, label: Label) {
        let code = match condition {
            Condition::Equal => 0x16,
            Condition::AnyOf => 0x46,
            Condition::NotEqual => 0x56,
            Condition::Below => 0xa6,
        };
        self.jumps.push((self.code.len(), label));
        self.push(code, left, R0, 0, right);
    }

    /// `if left > right goto label`, for pointers.
    pub fn jump_if_above(&mut self, left: Register, right: Register, label: Label) {
        self.jumps.push((self.code.len(), label));
        self.push(0x2d, left, right, 0, 0);
    }

    /// `goto label`.
    pub fn jump(&mut self, label: Label) {
        self.jumps.push((self.code.len(), label));
        self.push(0x05, R0, R0, 0, 0);
    }

    /// `R0 = function(R1, .., R5)`.
    pub fn call(&mut self, function: i32) {
        self.push(0x85, R0, R0, 0, function);
    }

    /// `return R0`.
    pub fn exit(&mut self) {
        self.push(0x95, R0, R0, 0, 0);
    }

    fn push(&mut self, code: u8, to: Register, from: Register, offset: i16, immediate: i32) {
        let registers =
            if cfg!(target_endian = "little") { from.0 << 4 | to.0 } else { to.0 << 4 | from.0 };
        self.code.push(Instruction { code, registers, offset, immediate });
    }

    /// The program. `None` if a label that is jumped to was not placed, or is too far.
    pub fn finish(mut self) -> Option<Vec<Instruction>> {
        for (at, label) in self.jumps {
            let target = self.places.get(label.0).copied().flatten()?;
            // Jumps count from the next instruction.
            self.code.get_mut(at)?.offset = i16::try_from(target.checked_sub(at + 1)?).ok()?;
        }
        Some(self.code)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jumps_go_to_their_labels() {
        let mut code = Assembler::default();
        let (near, far) = (code.label(), code.label());
        code.jump(far);
        code.jump(near);
        code.place(near);
        code.set(R0, 1);
        code.place(far);
        code.exit();
        let offsets: Vec<_> =
            code.finish().unwrap().iter().map(|instruction| instruction.offset).collect();
        assert_eq!(offsets, [2, 0, 0, 0]);
    }

    #[test]
    fn a_label_that_is_nowhere_is_an_error() {
        let mut code = Assembler::default();
        let label = code.label();
        code.jump(label);
        assert_eq!(code.finish(), None);
    }
}
