package tollgategin_test

import (
	"testing"

	"tollgate.example/tollgate/internal/conformance"
)

func TestMiddlewareOutlivesItsNode(t *testing.T) { conformance.RunFaults(t, hello) }
