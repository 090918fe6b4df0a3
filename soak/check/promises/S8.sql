-- no lock and no transaction is left when all clients are idle
select what || ' ' || name as finding from facts where what in ('lock', 'transaction');
