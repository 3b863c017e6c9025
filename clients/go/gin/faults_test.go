package tollgategin_test

import (
	"testing"

	"tollgate-limiter/internal/conformance"
)

func TestMiddlewareOutlivesItsNode(t *testing.T) { conformance.RunFaults(t, hello) }
