package outbox

// IsPublic is isPublic.
var IsPublic = isPublic
