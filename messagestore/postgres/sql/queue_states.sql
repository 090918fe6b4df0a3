select * from dibs.queue_states()
