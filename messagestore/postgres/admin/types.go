package admin

import "github.com/dibs-go/dibs/messagestore/retention"

// The types of package retention, which a store on SQLite has too.
type (
	// TrimOptions choose the messages that are removed.
	TrimOptions = retention.TrimOptions
	// Trimmed is the result of a trim of one stream.
	Trimmed = retention.Trimmed
	// DeleteOptions change how a stream is deleted. A nil *DeleteOptions is a good one.
	DeleteOptions = retention.DeleteOptions
	// ForgetOptions change how keys are forgotten. A nil *ForgetOptions is a good one.
	ForgetOptions = retention.ForgetOptions
	// Forgotten is the result of [Admin.Forget].
	Forgotten = retention.Forgotten
	// Deleted is the result of a deletion.
	Deleted = retention.Deleted
	// VerifyConfig changes the work of [Admin.Verify]. A nil *VerifyConfig is a good one.
	VerifyConfig = retention.VerifyConfig
	// A VerifyProgress says how far [Admin.Verify] is.
	VerifyProgress = retention.VerifyProgress
	// A Verification is the result of [Admin.Verify].
	Verification = retention.Verification
	// Checked is how many there were to look at.
	Checked = retention.Checked
	// A Violation is something that is not as it should be.
	Violation = retention.Violation
)

const (
	// DefaultMinAge is how old a message is at least that [Admin.Trim] removes.
	DefaultMinAge = retention.DefaultMinAge

	// AnyAge is a [TrimOptions.MinAge] that spares nothing.
	AnyAge = retention.AnyAge
)
