package cli

import (
	"cmp"
	"runtime"
	"runtime/debug"
)

// A versionCommand is dibs version: it prints the version and how the program was built.
type versionCommand struct{}

func (versionCommand) Run(a *app) error {
	version, settings := "(unknown)", map[string]string{}
	if info, ok := debug.ReadBuildInfo(); ok {
		version = info.Main.Version
		for _, setting := range info.Settings {
			settings[setting.Key] = setting.Value
		}
	}
	revision, modified, platform := settings["vcs.revision"], settings["vcs.modified"] == "true", runtime.GOOS+"/"+runtime.GOARCH
	a.out.object(fields{
		"version", version, "go", runtime.Version(), "revision?", revision, "time?", settings["vcs.time"], "modified?", modified, "platform", platform,
	})
	changes := ""
	if modified {
		changes = ", with changes"
	}
	a.out.facts("dibs", version, "revision", cmp.Or(revision, "(unknown)")+changes, "go", runtime.Version(), "platform", platform)
	return nil
}
