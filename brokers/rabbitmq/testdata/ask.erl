%% Answers each line that comes to the socket $ASK_SOCKET, an expression, with its value.
spawn(fun() ->
    {ok, Listener} = gen_tcp:listen(0, [{ifaddr, {local, os:getenv("ASK_SOCKET")}}, binary, {packet, line}, {active, false}]),
    Serve = fun Serve() ->
        {ok, Conn} = gen_tcp:accept(Listener),
        {ok, Line} = gen_tcp:recv(Conn, 0),
        Answer = try
            {ok, Tokens, _} = erl_scan:string(binary_to_list(Line)),
            {ok, Expressions} = erl_parse:parse_exprs(Tokens),
            {value, Value, _} = erl_eval:exprs(Expressions, []),
            io_lib:format("answer ~p", [Value])
        catch
            _:Reason -> io_lib:format("error ~p", [Reason])
        end,
        gen_tcp:send(Conn, Answer),
        gen_tcp:close(Conn),
        Serve()
    end,
    Serve()
end).
