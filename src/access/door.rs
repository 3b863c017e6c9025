//! The doors of a node: the protocols that bring checks to the engine.

named! {
    /// The protocol of a check, for metrics and for the rights of tokens. No door changes a
    /// decision.
    pub enum Door {
        /// The JSON API.
        Http = "http",
        /// Forward auth of a gateway.
        Gate = "gate",
        /// Envoy's rate limit service.
        Envoy = "envoy",
        /// Redis clients.
        Resp = "resp",
    }
}
