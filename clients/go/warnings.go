package tollgate

import (
	"log/slog"
	"net/http"
	"strings"
	"sync"
)

// warnings are mistakes of a configuration. The client logs each one once.
type warnings struct {
	log   *slog.Logger
	mutex sync.Mutex
	given map[string]bool
}

// maxWarnings bounds the memory, since a program may choose policies by the text of a caller.
const maxWarnings = 100

// once logs the first warning with this id.
func (w *warnings) once(id, text string, more ...any) {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	if w.given[id] || len(w.given) >= maxWarnings {
		return
	}
	w.given[id] = true
	log := w.log
	if log == nil {
		log = slog.Default()
	}
	log.Warn("tollgate: "+text, more...)
}

// problem warns of the problems that a change of the configuration cures.
func (w *warnings) problem(problem *Problem) {
	switch {
	case problem.Name() == "unknown-policy":
		w.once(problem.Detail, problem.Detail+". The node knows: "+strings.Join(problem.Known, ", ")+
			". Correct the name in the program, or add the policy to the node's configuration. "+
			"Until then its requests have no decision")
	case problem.Name() == "no-hold":
		w.once(problem.Detail, problem.Detail)
	case problem.Status == http.StatusUnauthorized || problem.Status == http.StatusForbidden:
		w.once("token", "the node rejects the token: "+problem.Detail+
			". Set Options.Token to a token that the node's configuration admits to checks. "+
			"Until then no request has a decision")
	}
}
