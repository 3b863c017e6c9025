if #record == 0 then
  return reply
end
redis.call('SET', record_key, cmsgpack.pack(record), 'PX', life)
table.insert(record, 1, 'charged')
return record
