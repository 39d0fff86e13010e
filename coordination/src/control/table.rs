//! Messages from a table: the enum, its numbers on the wire, the fields in their order.

macro_rules! messages {
    ($( $(#[$doc:meta])* class $class:literal $name:ident { $(
        $(#[$note:meta])* $number:literal $kind:ident
        { $( $(#[$what:meta])* $field:ident: $type:ty ),* $(,)? },
    )* } )*) => { $(
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, Debug)]
        pub enum $name {
            $( $(#[$note])* $kind { $( $(#[$what])* $field: $type ),* }, )*
        }

        impl Message for $name {
            const CLASS: u8 = $class;

            fn kind(&self) -> u8 {
                match self { $( Self::$kind { .. } => $number, )* }
            }

            fn put_fields(&self, _out: &mut Vec<u8>) {
                match self { $( Self::$kind { $( $field ),* } => { $( $field.put(_out); )* } )* }
            }

            fn take_fields(kind: u8, _from: &mut &[u8]) -> Result<Self, ControlError> {
                match kind {
                    $( $number => Ok(Self::$kind { $( $field: Field::take(_from)? ),* }), )*
                    other => Err(ControlError::Kind(other)),
                }
            }
        }

        /// Inside another message: its number, then its fields.
        impl Field for $name {
            fn put(&self, out: &mut Vec<u8>) {
                self.kind().put(out);
                self.put_fields(out);
            }

            fn take(from: &mut &[u8]) -> Result<Self, ControlError> {
                let kind = u8::take(from)?;
                Self::take_fields(kind, from)
            }
        }
    )* };
}
