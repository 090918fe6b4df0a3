package demo

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"syscall"
	"time"
)

// Listen returns a socket for processes to inherit, and its URL. So a process keeps the address of
// the killed process that it replaces.
func (r *Run) Listen() (*os.File, string, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // it is closed below
	if err != nil {
		return nil, "", err
	}
	tcp, ok := listener.(*net.TCPListener)
	if !ok {
		return nil, "", errors.New("a listener that is none of TCP")
	}
	file, err := shared(tcp)
	if err := errors.Join(err, listener.Close()); err != nil {
		return nil, "", err
	}
	r.atEnd = append(r.atEnd, file.Close)
	return file, "http://" + listener.Addr().String(), nil
}

// shared returns the socket of a listener for processes to inherit. The file that TCPListener.File
// returns is set to block each time that a process is started with it. The processes share that
// setting, so the accept of a running process would block too, and its Close would wait for the
// next client.
func shared(listener *net.TCPListener) (file *os.File, err error) {
	conn, err := listener.SyscallConn()
	if err != nil {
		return nil, err
	}
	failed := conn.Control(func(fd uintptr) {
		var copied int
		syscall.ForkLock.RLock()
		defer syscall.ForkLock.RUnlock()
		if copied, err = syscall.Dup(int(fd)); err == nil { //nolint:gosec // a descriptor is small
			syscall.CloseOnExec(copied)
			file = os.NewFile(uintptr(copied), "listener") //nolint:gosec // as above
		}
	})
	return file, errors.Join(failed, err)
}

// Inherited returns the socket that the process was started with.
func Inherited() (net.Listener, error) {
	const first = 3
	listener, err := net.FileListener(os.NewFile(first, "listener"))
	if err != nil {
		return nil, fmt.Errorf("the socket of the demo: %w", err)
	}
	return listener, nil
}

// Serve serves on the socket that the process was started with, until ctx ends.
func Serve(ctx context.Context, h http.Handler) error {
	listener, err := Inherited()
	if err != nil {
		return err
	}
	server := &http.Server{Handler: h, ReadHeaderTimeout: 10 * time.Second}
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(listener) }()
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
	}
	ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer cancel()
	return server.Shutdown(ending)
}

// Serve serves in this process until the run is closed, and returns the URL.
func (r *Run) Serve(h http.Handler) (string, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // it is closed with the server
	if err != nil {
		return "", err
	}
	server := &http.Server{Handler: h, ReadHeaderTimeout: 10 * time.Second}
	go func() { _ = server.Serve(listener) }() // until Close
	r.atEnd = append(r.atEnd, server.Close)
	return "http://" + listener.Addr().String(), nil
}

// An Answer is the answer to a request over HTTP.
type Answer struct {
	Status int
	Header http.Header
	Body   []byte
}

// Call sends a request, with body as JSON if it is not nil. It does not change the case of header
// names: net/http does not repeat a request with "idempotency-key".
func Call(ctx context.Context, client *http.Client, method, url string, header map[string]string, body any) (Answer, error) {
	var encoded []byte
	if body != nil {
		var err error
		if encoded, err = json.Marshal(body); err != nil {
			return Answer{}, err
		}
	}
	request, err := http.NewRequestWithContext(ctx, method, url, bytes.NewReader(encoded))
	if err != nil {
		return Answer{}, err
	}
	request.Header.Set("Content-Type", "application/json")
	for name, value := range header {
		request.Header[name] = []string{value}
	}
	response, err := client.Do(request)
	if err != nil {
		return Answer{}, err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	return Answer{response.StatusCode, response.Header, text}, err
}
