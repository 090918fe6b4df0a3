.DEFAULT_GOAL := help
.NOTPARALLEL:

LINT = $$(GOWORK=off go tool -modfile=$(CURDIR)/tools/go.mod -n golangci-lint)
ACCOUNT = go run ./examples/account/cmd/account demo $(if $(ORDERS),--orders "$$ORDERS")
PAYMENTS = go run ./examples/payments/cmd/payments demo $(if $(ORDERS),--orders "$$ORDERS")
STANDING = go run ./examples/standing/cmd/standing demo $(if $(ORDERS),--orders "$$ORDERS")
MESSAGING = go build -C internal/demo/messaging -o $(CURDIR)/bin/messaging . && bin/messaging demo $(if $(ORDERS),--orders "$$ORDERS")
TICKETING = go run ./examples/ticketing/cmd/ticketing demo $(if $(FOR),--for "$$FOR")
FUZZTIME ?= 30s
# What one package's tests may take on the slowest machine. The long tier sets its own.
TIMEOUT ?= 10m
# Tests make much garbage in small heaps: collected a quarter as often, they take a tenth less time.
GOTEST := env GOGC=400 go test -timeout $(TIMEOUT)
# Modules of their own: what they need, a program that imports Dibs does not.
BROKERS := brokers/nats brokers/redis brokers/kafka brokers/rabbitmq
# Their tests run when they, or what they test, was changed: see test/changed.
SELDOM := brokers/kafka
# The gate does not run the tests of these, but type-checks them.
UNTESTED := bench soak internal/demo/messaging intent/redisintent brokers/kafka brokers/rabbitmq
MODULES := cmd/dibs serve internal/demo/ui bench soak intent/redisintent observe internal/demo/messaging $(BROKERS)
BENCHED := postgresql redis-server npm
# Packages in which no two goroutines share anything: SQL does their work, and tests of it, or one goroutine.
# The suite of the drivers is raced where they run it, and the command, the demos and the examples in the
# long tier: they take minutes, and what they run side by side is in other packages.
UNRACED := /migrations(/|$$)|/internal/messagedb$$|/dibs$$|/internal/archtest$$|/internal/exactjson$$|/storetest$$$(if $(DIBS_LONG),,|/cmd/dibs/|/internal/demo$$|/examples/)
# The command is a module so that go install builds it by its path. Its go.work has the library beside
# it, and the tests of both run at once.
ALL := ./... ./cmd/dibs/...
test test/quick test/race: export GOWORK := $(CURDIR)/cmd/dibs/go.work
# The packages that take longest begin first: alone in the end they would leave a core idle.
FIRST := ./messagestore/postgres ./consumer ./cmd/dibs/internal/cli
# SQLite is C that was translated to Go: to watch each of its loads and stores took half the time.
# Nothing here uses package unsafe, so the checks of its pointers, which -race turns on, find nothing.
RACE := -vet=off -race -gcflags=all=-d=checkptr=0 -gcflags=modernc.org/...=-race=false

in_modules = for dir in $(or $(2),$(MODULES)); do echo "cd $$dir && $(1)" && (cd "$$dir" && $(1)) || exit; done

.PHONY: help
help: ## Print this list
	@awk -F ':.*## ' '/^[a-z\/]+:.*## / {printf "make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: demo
demo: ## Run the account example on SQLite (ORDERS=file.csv: with payment orders of yours)
	@env -u DIBS_STORE $(ACCOUNT)

.PHONY: demo/postgres
demo/postgres: ## Run it on PostgreSQL: DATABASE_URL, or a throwaway server that syncs
	@scripts/with-postgres --durable DATABASE_URL -- sh -c 'DIBS_STORE="$$DATABASE_URL" $(ACCOUNT)'

.PHONY: demo/intents
demo/intents: ## Run the payments API on SQLite, under kills and with impatient clients
	@env -u DIBS_STORE $(PAYMENTS)

.PHONY: demo/intents/postgres
demo/intents/postgres: ## Run it on PostgreSQL: DATABASE_URL, or a throwaway server that syncs
	@scripts/with-postgres --durable DATABASE_URL -- sh -c 'DIBS_STORE="$$DATABASE_URL" $(PAYMENTS)'

.PHONY: demo/messaging
demo/messaging: ## Transfer money by units, sagas and relays on SQLite, with JetStream on disk, under kills
	@env -u DIBS_STORE sh -c '$(MESSAGING)'

.PHONY: demo/messaging/postgres
demo/messaging/postgres: ## Run it on PostgreSQL: DATABASE_URL, or a throwaway server that syncs
	@scripts/with-postgres --durable DATABASE_URL -- sh -c 'export DIBS_STORE="$$DATABASE_URL"; $(MESSAGING)'

.PHONY: demo/queue
demo/queue: ## Pay standing orders by schedules and a queue on SQLite, under kills
	@env -u DIBS_STORE $(STANDING)

.PHONY: demo/queue/postgres
demo/queue/postgres: ## Run it on PostgreSQL: DATABASE_URL, or a throwaway server that syncs
	@scripts/with-postgres --durable DATABASE_URL -- sh -c 'DIBS_STORE="$$DATABASE_URL" $(STANDING)'

.PHONY: demo/serve
demo/serve: ## Pay standing orders through servers on SQLite and on PostgreSQL, by clients in Go, TypeScript and a shell, under kills
	$(MAKE) serve/ts/built
	scripts/setup jq curl
	cd serve && go build -o ../bin/serve-demo ./internal/demo
	@env -u DIBS_STORE bin/serve-demo demo --files serve $(if $(ORDERS),--orders "$$ORDERS")
	@scripts/with-postgres --durable DATABASE_URL -- sh -c 'DIBS_STORE="$$DATABASE_URL" bin/serve-demo demo --files serve $(if $(ORDERS),--orders "$$ORDERS")'

.PHONY: demo/ui
demo/ui: ## Show the page over a shop in which five things are broken, and wait: on SQLite, or DIBS_STORE
	cd internal/demo/ui && go build -o ../../../bin/ui-demo . && exec ../../../bin/ui-demo

.PHONY: demo/ui/tour
demo/ui/tour: internal/demo/ui/node_modules ## Mend the five through the page in Chromium, and then with the command alone, and say what was done
	scripts/setup chromium
	cd internal/demo/ui && go test -count=1 -v -run 'Mends' .

serve/ts/built: serve/ts/package-lock.json $(wildcard serve/ts/*/*.ts)
	scripts/setup npm
	cd serve/ts && npm ci --silent --no-audit --no-fund && node_modules/.bin/tsc -p .
	touch $@

.PHONY: demo/replicas
demo/replicas: ## Run the ticketing service in three replicas that come and go: DATABASE_URL, or a throwaway server
	@scripts/with-postgres --durable DATABASE_URL -- sh -c 'DIBS_STORE="$$DATABASE_URL" $(TICKETING)'

.PHONY: test
test: ## Run every test, on TEST_DATABASE_URL or a throwaway server
	scripts/with-postgres -- $(GOTEST) -vet=off $(TESTFLAGS) $(FIRST) $(ALL)

.PHONY: test/quick
test/quick: ## Run the tests that need no PostgreSQL; the others say that they skip
	env -u TEST_DATABASE_URL $(GOTEST) $(ALL)

.PHONY: test/flaky
test/flaky: ## Run make test N=10 times beside four busy loops, in random order, and count each failure
	scripts/flaky $(or $(N),10)

.PHONY: test/bare
test/bare: ## Run the demo and every test with no program in reach but Go, git, make, bash and apt
	scripts/bare -- $(MAKE) demo
	scripts/bare -- $(MAKE) test

.PHONY: test/versions
test/versions: ## Run the tests that depend on it on PostgreSQL 15 to 18 (VERSIONS=16)
	scripts/setup npm
	scripts/versions $(or $(VERSIONS),15 16 17 18)

.PHONY: test/race
test/race: export GOTEST := $(GOTEST)
test/race: export RACE := $(RACE)
test/race: export UNRACED := $(UNRACED)
test/race: ## Run every test in random order, with the race detector in packages that were changed since they passed with it
	scripts/setup gcc
	scripts/with-postgres -- scripts/race $(FIRST) $(ALL)

.PHONY: test/cuts
test/cuts: ## Cut every call at every boundary of the protocol (PGX="v5.11.0 v5.12.0": of pgx)
	scripts/with-postgres -- scripts/cuts $(PGX)

.PHONY: fuzz
fuzz: ## Run every fuzz test for FUZZTIME (30s)
	scripts/with-postgres -- scripts/fuzz $(FUZZTIME)

.PHONY: test/bench
test/bench: ## Run the tests of the bench; each contender does a little of its work
	scripts/setup $(BENCHED)
	cd bench && $(GOTEST) ./...

.PHONY: bench
bench: ## Measure beside others, on servers of its own (BENCH=--long: longer; BENCH=--help)
	scripts/setup $(BENCHED)
	cd bench && go build -o ../bin/bench . && exec ../bin/bench $(BENCH)

.PHONY: bench/docs
bench/docs: ## Put the figures of the last run of the bench into bench/RESULTS.md
	cd bench && go run . docs

.PHONY: docs/picture
docs/picture: ## Draw the picture of the README from docs/parts.dot, light and dark
	scripts/picture docs/parts

.PHONY: test/redis
test/redis: ## Run the tests of intents over Redis
	scripts/setup redis-server
	cd intent/redisintent && $(GOTEST) ./...

.PHONY: test/suites
test/suites: export DIBS_CHANGED := 1
test/suites: ## Run the tests of the conformance suites: each finds the bugs that are planted for it
	$(GOTEST) -run 'Bug|Mutant' ./messagestore/storetest ./internal/queuetest ./intent/intenttest

.PHONY: test/messagedb
test/messagedb: export DIBS_CHANGED := 1
test/messagedb: ## Run the tests of what message-db's clients call, and of the adoption of its messages
	scripts/with-postgres -- $(GOTEST) ./internal/messagedb

.PHONY: test/kafka
test/kafka: ## Run the tests of the module of Kafka
	cd brokers/kafka && $(GOTEST) ./...

.PHONY: test/ui
test/ui: export DIBS_CHANGED := 1
test/ui: internal/demo/ui/node_modules ## Open each view of the page in Chromium, and mend through it what is broken
	scripts/setup chromium
	cd internal/demo/ui && $(GOTEST) ./...

internal/demo/ui/node_modules: internal/demo/ui/package-lock.json
	scripts/setup npm
	cd internal/demo/ui && npm ci --silent --no-audit --no-fund

.PHONY: test/changed
test/changed: ## Run the tests of parts that seldom change, of those that were changed since the tests last passed
	@scripts/changed suites messagestore/storetest messagestore/memory internal/queuetest internal/queuestate intent -- $(MAKE) test/suites
	@scripts/changed messagedb internal/messagedb migrations -- $(MAKE) test/messagedb
	@scripts/changed redis intent internal/testserver -- $(MAKE) test/redis
	@scripts/changed ui ui operate internal/demo/ui -- $(MAKE) test/ui
	@scripts/changed kafka brokers/kafka brokers/internal/brokertest brokers/internal/receiving inbox outbox -- $(MAKE) test/kafka

.PHONY: test/observe
test/observe: ## Run the tests of the OpenTelemetry and Prometheus module
	cd observe && $(GOTEST) ./...

.PHONY: test/serve
test/serve: ## Check the services: the .proto files, that what is generated from them is fresh, and the tests, from Node and Python too
	$(MAKE) generate
	git diff --exit-code -- serve/gen serve/ts/gen || { echo 'serve: please commit what make generate changed' >&2; exit 1; }
	cd serve/proto && ../ts/node_modules/.bin/buf breaking --against released.binpb
	scripts/setup python3 curl jq
	cd serve && ../scripts/with-postgres -- $(GOTEST) ./...

.PHONY: generate
generate: ## Generate the code of the services from serve/proto
	scripts/setup npm
	cd serve/ts && npm ci --silent --no-audit --no-fund
	cd serve/proto && PATH="$(CURDIR)/serve/ts/node_modules/.bin:$$PATH" sh -c 'buf lint && buf generate'

.PHONY: test/messaging
test/messaging: ## Run the tests of the messaging demo: its verdict, its bank, and a short run on each database
	scripts/with-postgres -- sh -c 'cd internal/demo/messaging && $(GOTEST) ./...'

.PHONY: test/brokers
test/brokers: ## Run the tests of the modules of brokers, each with servers of its own (DIBS_LONG=1: RabbitMQ too)
	scripts/setup redis-server $(if $(DIBS_LONG),rabbitmq-server)
	@for dir in $(filter-out $(SELDOM),$(BROKERS)); do echo "cd $$dir && $(GOTEST) ./..." && (cd "$$dir" && $(GOTEST) ./...) || exit; done

.PHONY: test/soak
test/soak: ## Run the tests of the soak: its checker, and runs of some seconds
	scripts/setup postgresql pgbouncer strace libfaketime
	cd soak && $(GOTEST) ./...

.PHONY: soak
soak: ## Torment a store for three minutes and check its history (SOAK=--ci: to its goals; --long; --help)
	scripts/setup postgresql
	cd soak && go build -buildvcs=auto -o ../bin/soak . && exec ../bin/soak $(SOAK)

.PHONY: soak/ci
soak/ci: ## Torment a store, replicas, holders of intents, queues, servers and sagas to the goals of make ci/long, with failovers: about an hour
	scripts/setup postgresql pgbouncer libfaketime
	$(MAKE) soak SOAK=--ci
	$(MAKE) soak SOAK=failover
	$(MAKE) soak SOAK='replicas --duration 60s'
	$(MAKE) soak SOAK='intents --ci'
	$(MAKE) soak SOAK='queue --ci --scene all'
	$(MAKE) soak SOAK='queue --servers 1 --store sqlite'
	$(MAKE) soak SOAK='queue --servers 2'
	$(MAKE) soak SOAK='intents --servers 2'
	$(MAKE) soak SOAK='sagas --ci'
	$(MAKE) soak SOAK='sagas --clock'

.PHONY: mutants
mutants: ## Plant bugs and see that the soak finds each (MUTANTS=4: so many, others each day)
	scripts/setup postgresql libfaketime
	cd soak && go build -buildvcs=auto -o ../bin/soak . && exec ../bin/soak mutants $(if $(MUTANTS),--some $(MUTANTS))

.PHONY: lint
lint: ## Check formatting and lint in the modules that were changed since they last passed
	@scripts/changed lint '*.go' $(MODULES:%=':!%') go.mod .golangci.yml tools/go.mod -- sh -c '$(LINT) run ./...'
	@for dir in $(MODULES); do scripts/changed "lint-$$(echo $$dir | tr / -)" "$$dir/*.go" $$dir/go.mod .golangci.yml tools/go.mod -- sh -c 'cd $$0 && $(LINT) run ./...' "$$dir" || exit; done

.PHONY: types
types: ## Type-check the modules whose tests run in the long tier
	cd tools && GOWORK=off go run ./typecheck $(addprefix ../,$(UNTESTED))

.PHONY: fix
fix: ## Do what lint can do by itself
	$(LINT) run --fix ./...
	@$(call in_modules,$(LINT) run --fix ./...)

.PHONY: vet
vet: ## Run go vet
	go vet ./...
	@$(call in_modules,go vet ./...)

.PHONY: tidy
tidy: ## Check that every go.mod is tidy
	go mod tidy -diff
	scripts/tidy -diff
	@$(call in_modules,go mod tidy -diff,$(filter-out cmd/dibs,$(MODULES)))
	cd tools && go mod tidy -diff

.PHONY: build
build: ## Build bin/dibs
	go build -C cmd/dibs -o $(CURDIR)/bin/dibs

# Lint vets, too. Each stage has a budget in seconds, which is twice what it takes on two cores that
# have built nothing yet.
STAGES := tidy:60 types:60 lint:600 test/race:900 test/changed:400 test/observe:60 test/serve:200 test/brokers:120 demo:90
LONG_STAGES := $(foreach stage,$(STAGES),$(firstword $(subst :, ,$(stage)))) test/versions test/bench test/soak test/messaging mutants demo/postgres test/bare soak/ci

.PHONY: ci
ci: export CI := true
ci: export GOGC := 400
ci: ## Run all that a change must pass: some eight minutes
	@scripts/stages $(STAGES)

.PHONY: ci/long
ci/long: export CI := true
ci/long: export GOGC := 400
ci/long: export DIBS_LONG := 1
ci/long: export TIMEOUT := 60m
ci/long: export MUTANTS := 4
ci/long: ## The same with the long tier, other servers, the soak and planted bugs: at the end of an issue, and before a release
	@scripts/stages $(LONG_STAGES)
