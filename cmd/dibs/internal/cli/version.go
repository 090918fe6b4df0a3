package cli

import (
	"runtime"
	"runtime/debug"
)

type versionCommand struct{}

// Help is printed below the command's usage.
func (versionCommand) Help() string { return "Example:\n\n    dibs version --json" }

type versionLine struct {
	Version  string `json:"version"`
	Go       string `json:"go"`
	Revision string `json:"revision,omitempty"`
	Time     string `json:"time,omitempty"`
	Modified bool   `json:"modified,omitempty"`
	Platform string `json:"platform"`
}

// Run prints the version.
func (versionCommand) Run(a *app) error {
	v := versionLine{Version: "(unknown)", Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	if info, ok := debug.ReadBuildInfo(); ok {
		v.Version = info.Main.Version
		for _, setting := range info.Settings {
			switch setting.Key {
			case "vcs.revision":
				v.Revision = setting.Value
			case "vcs.time":
				v.Time = setting.Value
			case "vcs.modified":
				v.Modified = setting.Value == "true"
			}
		}
	}
	if a.JSON {
		return a.out.object(v)
	}
	revision := v.Revision
	if revision == "" {
		revision = "(unknown)"
	}
	if v.Modified {
		revision += ", with changes"
	}
	for _, row := range [][2]string{{"dibs", v.Version}, {"revision", revision}, {"go", v.Go}, {"platform", v.Platform}} {
		if err := a.out.row(cell{text: row[0], style: dim}, cell{text: row[1]}); err != nil {
			return err
		}
	}
	return nil
}
