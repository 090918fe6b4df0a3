package demo

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dibs-go/dibs/examples/payments"
	"github.com/dibs-go/dibs/idempotency"
	"github.com/dibs-go/dibs/internal/demo/stage"
)

// A clientReport is a line in which a client tells its progress.
type clientReport struct {
	Done     int `json:"done"`     // tasks with all their answers
	Sent     int `json:"sent"`     // requests
	Cut      int `json:"cut"`      // hung up on
	Replayed int `json:"replayed"` // answered with a stored response
	Busy     int `json:"busy"`     // answered with 409
	Failed   int `json:"failed"`   // answered with 5xx, or by the end of the connection
}

// An answer is a client's, for good: a line of its file.
type answer struct {
	Key     string `json:"key"`
	Planted bool   `json:"planted,omitempty"` // the request had another amount
	Status  int    `json:"status"`
	Sum     string `json:"sum"` // of status, header and body
}

type paymentsClientCommand struct {
	Orders      string
	Seed        uint64
	Client      int
	Servers     string
	Answers     string
	Concurrency int
	Settle      time.Duration
}

// Run has one client send its part of the plan. When ctx ends it finishes the payments that it has begun, within the
// time to settle.
func (c *paymentsClientCommand) Run(ctx context.Context, o *stage.Output) (err error) {
	orders, err := ReadOrders(c.Orders)
	if err != nil {
		return err
	}
	file, err := os.Create(c.Answers)
	if err != nil {
		return err
	}
	buffered := bufio.NewWriter(file)
	defer func() { err = errors.Join(err, buffered.Flush(), file.Close()) }()
	p := &paymentClient{
		servers: strings.Split(c.Servers, ","), answers: json.NewEncoder(buffered),
		http: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64, DisableCompression: true}},
	}
	finishing, cut := stage.Settling(ctx, c.Settle)
	defer cut()
	tasks := make(chan paymentTask)
	var working sync.WaitGroup
	failed := make(chan error, c.Concurrency)
	for i := range c.Concurrency {
		working.Go(func() {
			random := rand.New(rand.NewPCG(c.Seed, uint64(1+c.Client*c.Concurrency+i))) // patience is no secret
			for task := range tasks {
				if err := p.do(finishing, random, task); err != nil {
					failed <- err
					return
				}
				p.done.Add(1)
			}
		})
	}
	report := json.NewEncoder(o.Stdout)
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	err = func() error {
		for _, task := range newPaymentPlan(orders, c.Seed).tasks[c.Client] {
			for waiting := true; waiting; {
				select {
				case tasks <- task:
					waiting = false
				case <-tick.C:
					_ = report.Encode(p.report()) // without its parent it ends soon
				case err := <-failed:
					return err
				case <-ctx.Done():
					return context.Cause(ctx)
				}
			}
		}
		return nil
	}()
	close(tasks)
	working.Wait()
	close(failed)
	for late := range failed {
		err = errors.Join(err, late)
	}
	_ = report.Encode(p.report())
	return err
}

// A paymentClient is impatient: it hangs up, and asks again.
type paymentClient struct {
	servers []string
	http    *http.Client

	done, sent, cut, replayed, busy, failures atomic.Int64

	mu      sync.Mutex
	answers *json.Encoder
}

func (p *paymentClient) report() clientReport {
	return clientReport{
		Done: int(p.done.Load()), Sent: int(p.sent.Load()), Cut: int(p.cut.Load()), Replayed: int(p.replayed.Load()),
		Busy: int(p.busy.Load()), Failed: int(p.failures.Load()),
	}
}

// do sends the copies of a payment at once and, until one of the client's requests is answered
// for good, more of them one after the other.
func (p *paymentClient) do(ctx context.Context, random *rand.Rand, task paymentTask) error {
	answered := make(chan bool, task.Copies)
	for range task.Copies {
		server, patience := p.draw(random)
		go func() { answered <- p.ask(ctx, server, patience, task.Payment, false) }()
	}
	good := false
	for range task.Copies {
		good = <-answered || good
	}
	for tries := 1; !good; tries++ {
		if err := pause(ctx, random); err != nil {
			return err
		}
		server, patience := p.draw(random)
		good = p.ask(ctx, server, more(patience, tries), task.Payment, false)
	}
	other := task.Payment
	other.Amount++
	for planted, tries := !task.Plant, 0; !planted; tries++ {
		server, patience := p.draw(random)
		if planted = p.ask(ctx, server, more(patience, tries), other, true); planted {
			break
		}
		if err := pause(ctx, random); err != nil {
			return err
		}
	}
	return nil
}

func (p *paymentClient) draw(random *rand.Rand) (server string, patience time.Duration) {
	return p.servers[random.IntN(len(p.servers))], time.Duration(5+random.IntN(296)) * time.Millisecond
}

// more is the patience after some tries in vain: on a machine on which no answer comes in the patience of the
// first, the payment would never be made.
func more(patience time.Duration, tries int) time.Duration {
	return patience << min(tries/4, 6)
}

func pause(ctx context.Context, random *rand.Rand) error {
	wait(ctx, time.Duration(20+random.IntN(80))*time.Millisecond)
	return context.Cause(ctx)
}

// ask sends one request, and hangs up after some time. It reports whether the answer is one for
// good.
func (p *paymentClient) ask(ctx context.Context, server string, patience time.Duration, payment payments.Payment, planted bool) bool {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	p.sent.Add(1)
	a, replayed, err := p.post(ctx, server, payment)
	a.Planted = planted
	switch {
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		p.cut.Add(1)
		return false
	case err != nil, a.Status >= 500:
		p.failures.Add(1)
		return false
	case a.Status == http.StatusConflict:
		p.busy.Add(1)
		return false
	}
	if replayed {
		p.replayed.Add(1)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.answers.Encode(a) == nil
}

func (p *paymentClient) post(ctx context.Context, server string, payment payments.Payment) (a answer, replayed bool, err error) {
	body, err := json.Marshal(payment)
	if err != nil {
		return a, false, err
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, server+"/accounts/"+url.PathEscape(payment.Account)+"/payments", bytes.NewReader(body))
	if err != nil {
		return a, false, err
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header[idempotency.Header] = []string{fmt.Sprintf("%q", payment.ID)} // which net/http may not repeat by itself
	response, err := p.http.Do(r)
	if err != nil {
		return a, false, err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		return a, false, err
	}
	return answer{
		Key: payment.ID, Status: response.StatusCode,
		Sum: sumOf(response.StatusCode, response.Header.Get("Content-Type"), response.Header.Get("Location"), text),
	}, response.Header.Get(idempotency.Replayed) != "", nil
}

func sumOf(status int, contentType, location string, body []byte) string {
	h := sha256.Sum256(fmt.Appendf(nil, "%d %q %q %q", status, contentType, location, body))
	return hex.EncodeToString(h[:8])
}
