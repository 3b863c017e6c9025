    -- Decides the costs in order. Each is charged to all quotas or to none. `dearest` is the
    -- highest cost, and `peeks` says whether one is 0.
    local charged, dearest, peeks = 0, 0, false
    while true do
      if cost == 0 then
        peeks = true
      else
        local left = room - charged
        local fit = (left - left % cost) / cost
        if fit > times then
          fit = times
        end
        if fit > 0 then
          charged = charged + fit * cost
        end
        if cost > dearest then
          dearest = cost
        end
      end
      if at == ends then
        break
      end
      cost, times, at = read_at('<dd', numbers, at)
    end
