//! Enums whose variants have names.

/// Defines a plain enum, its variants in order as `ALL`, and their names in answers, metrics and
/// the configuration.
macro_rules! named {
    (
        $(#[$about:meta])*
        $vis:vis enum $type:ident { $($(#[$doc:meta])* $variant:ident = $name:literal $(as $number:literal)?,)* }
    ) => {
        $(#[$about])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        $vis enum $type { $($(#[$doc])* $variant $(= $number)?,)* }

        impl $type {
            pub const ALL: [Self; Self::WORDS.len()] = [$(Self::$variant),*];

            /// The names, with their variants.
            pub const WORDS: &'static [(&'static str, Self)] = &[$(($name, Self::$variant)),*];

            /// The name in answers, metrics and the configuration.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }
        }
    };
}
