select after, upto from dibs_adoption.ranges where messages is null order by after limit 1 for update skip locked
