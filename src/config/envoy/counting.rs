//! The setting `counting`.

named! {
    /// How the descriptors of one request count together.
    pub enum Counting {
        /// All are charged, or none is.
        AllOrNone = "all-or-none",
        /// Each is charged for itself, up to its limit.
        Independent = "independent",
    }
}
