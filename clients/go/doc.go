// Package tollgate asks the nodes of a Tollgate rate limiter whether a request may pass.
//
// A [Client] checks keys against policies. [Client.Middleware] protects an [http.Handler]:
//
//	client, err := tollgate.New(tollgate.Options{Nodes: []string{"http://127.0.0.1:7070"}})
//	limit := client.Middleware(tollgate.Limit{Policy: "per-ip"})
//	http.ListenAndServe(":8080", limit(mux))
//
// Each call ends within [Options.Deadline]. It returns a decision, a [Problem] if the node rejects
// the call, or an [Unavailable] error. A denial is a decision, not an error.
//
// The client repeats a check once after a broken connection. [Check.Once] keeps such a retry from
// charging twice. Concurrent checks share one call, and a denial that is final needs none. Checks of
// busy keys need none either if the policy sells leases: the client buys units, and spends them. So
// call [Client.Close] at the end of the program, which returns the rest.
package tollgate
